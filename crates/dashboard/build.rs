//! Embeds the page, if `make ui` has built it.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::error::Error;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::Path;
use std::{env, fs};

/// Files of the page, by the ends of their names.
const TYPES: [(&str, &str); 5] = [
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let page = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../target/ui");
    let out = env::var("OUT_DIR")?;
    // Cargo would run this script each time if there were no such folder.
    let _ = fs::create_dir_all(&page);
    println!("cargo:rerun-if-changed={}", page.display());
    let mut files: Vec<_> = fs::read_dir(&page).into_iter().flatten().collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut text = String::from("static ASSETS: &[Asset] = &[\n");
    for file in files {
        let name = file.file_name().into_string().map_err(|name| format!("{}: no text", name.display()))?;
        let end = Path::new(&name).extension().and_then(|end| end.to_str()).unwrap_or_default();
        let Some((_, media_type)) = TYPES.iter().find(|(known, _)| *known == end) else { continue };
        let content = fs::read(file.path())?;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&content)?;
        fs::write(Path::new(&out).join(format!("{name}.gz")), gzip.finish()?)?;
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        writeln!(
            text,
            "Asset {{ name: {name:?}, media_type: {media_type:?}, tag: \"\\\"{:016x}\\\"\", gzip: \
             include_bytes!(concat!(env!(\"OUT_DIR\"), \"/\", {:?})) }},",
            hasher.finish(),
            format!("{name}.gz")
        )?;
    }
    text.push_str("];\n");
    fs::write(Path::new(&out).join("assets.rs"), text)?;
    Ok(())
}
