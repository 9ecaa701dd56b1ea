//! Makes modules whose started instances can be copied. An instance is its memory, its globals and
//! its tables. Memory can be copied, globals can be if they are exported, and tables cannot. So
//! every mutable global is exported. A module that changes a table, or drops parts of itself, is
//! marked as one that cannot be copied: each of its instances starts from scratch.

use std::ops::Range;
use wasmparser::{Operator, Parser, Payload, TypeRef, ValType};

/// A module, possibly with additional exports.
pub(super) struct Portable {
    pub bytes: Vec<u8>,
    /// The exports of the mutable globals; `None`: instances cannot be copied.
    pub globals: Option<Vec<String>>,
}

/// The findings about a module.
#[derive(Default)]
struct Findings {
    /// The mutable globals, by index.
    mutable: Vec<u32>,
    globals: u32,
    exports: Option<Range<usize>>,
    exported: u32,
    /// A part of the module's state cannot be copied.
    fixed: bool,
    names: Vec<String>,
}

/// Adds the exports. The module must be valid.
pub(super) fn portable(module: &[u8]) -> Result<Portable, wasmparser::BinaryReaderError> {
    let found = find(module)?;
    let Some(exports) = found.exports.clone().filter(|_| !found.fixed) else {
        return Ok(Portable { bytes: module.to_vec(), globals: None });
    };
    let mut names = Vec::with_capacity(found.mutable.len());
    let mut added = Vec::new();
    for index in &found.mutable {
        let name = (0..).map(|n: u32| format!("leno.global.{index}.{n}")).find(|name| !found.names.contains(name));
        let Some(name) = name else { continue };
        leb128(&mut added, name.len());
        added.extend_from_slice(name.as_bytes());
        added.push(3);
        leb128(&mut added, *index as usize);
        names.push(name);
    }
    // The section's content begins with its count; the entries follow it unchanged.
    let content = module.get(exports.clone()).unwrap_or_default();
    let count_length = content.iter().position(|byte| byte & 0x80 == 0).map_or(0, |last| last + 1);
    let mut section = Vec::with_capacity(content.len() + added.len() + 5);
    leb128(&mut section, found.exported as usize + names.len());
    section.extend_from_slice(content.get(count_length..).unwrap_or_default());
    section.append(&mut added);
    // The content is preceded by its length (in as few or as many bytes as the compiler chose) and
    // the section's number.
    let mut bytes = Vec::with_capacity(module.len() + section.len());
    bytes.extend_from_slice(module.get(..header(module, exports.start)).unwrap_or_default());
    bytes.push(7);
    leb128(&mut bytes, section.len());
    bytes.append(&mut section);
    bytes.extend_from_slice(module.get(exports.end..).unwrap_or_default());
    Ok(Portable { bytes, globals: Some(names) })
}

/// The start of the section's header whose content begins at `content`.
fn header(module: &[u8], content: usize) -> usize {
    let mut position = 8;
    while position < content {
        let length = module.get(position + 1..).unwrap_or_default();
        let bytes = length.iter().position(|byte| byte & 0x80 == 0).map_or(0, |last| last + 1);
        let size = length
            .get(..bytes)
            .unwrap_or_default()
            .iter()
            .rev()
            .fold(0usize, |size, byte| size.wrapping_shl(7) | usize::from(byte & 0x7f));
        if position + 1 + bytes == content {
            return position;
        }
        position = position.saturating_add(1 + bytes).saturating_add(size);
    }
    content
}

fn find(module: &[u8]) -> Result<Findings, wasmparser::BinaryReaderError> {
    let mut found = Findings::default();
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    if let TypeRef::Global(_) = import?.ty {
                        found.globals += 1;
                        found.fixed = true;
                    }
                }
            }
            Payload::GlobalSection(globals) => {
                for global in globals {
                    let ty = global?.ty;
                    let number = matches!(
                        ty.content_type,
                        ValType::I32 | ValType::I64 | ValType::F32 | ValType::F64 | ValType::V128
                    );
                    found.fixed |= ty.mutable && !number;
                    if ty.mutable {
                        found.mutable.push(found.globals);
                    }
                    found.globals += 1;
                }
            }
            Payload::ExportSection(exports) => {
                found.exports = Some(exports.range());
                found.exported = exports.count();
                for export in exports {
                    let export = export?;
                    found.names.push(export.name.to_owned());
                }
            }
            Payload::CodeSectionEntry(body) => {
                for operator in body.get_operators_reader()? {
                    found.fixed |= is_unrestorable(&operator?);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Whether it changes state that the host cannot restore.
pub(crate) fn is_unrestorable(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::TableSet { .. }
            | Operator::TableGrow { .. }
            | Operator::TableFill { .. }
            | Operator::TableCopy { .. }
            | Operator::TableInit { .. }
            | Operator::ElemDrop { .. }
            | Operator::DataDrop { .. }
    )
}

fn leb128(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
