//! Where the kernel's own structures have their fields, by the kernel's type information (BTF).

use super::skeleton::types;
use crate::Error;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Composite, MemberAttr, Struct};
use std::io;

impl types::offsets {
    /// Those of this kernel.
    pub(super) fn of_kernel() -> Result<Self, Error> {
        let kernel = Btf::from_vmlinux()?;
        let of = |structure: &str, field: &str| -> Result<u32, Error> {
            let found = kernel.type_by_name::<Struct<'_>>(structure).and_then(|it| bits(&kernel, it.into(), field));
            let missing =
                || io::Error::other(format!("the kernel's type information has no field {structure}.{field}"));
            Ok(found.ok_or_else(missing)? / 8)
        };
        Ok(Self {
            sk_socket: of("sock", "sk_socket")?,
            file: of("socket", "file")?,
            skc_listener: of("sock_common", "skc_listener")?,
            nsproxy: of("task_struct", "nsproxy")?,
            net_ns: of("nsproxy", "net_ns")?,
            net_cookie: of("net", "net_cookie")?,
            cred: of("task_struct", "cred")?,
            cap_effective: of("cred", "cap_effective")?,
        })
    }
}

/// Where a structure, or a union, has a field, also in a member without a name.
fn bits(kernel: &Btf<'_>, structure: Composite<'_>, field: &str) -> Option<u32> {
    structure.iter().find_map(|member| {
        let (MemberAttr::Normal { offset } | MemberAttr::BitField { offset, .. }) = member.attr;
        match member.name.filter(|name| !name.is_empty()) {
            Some(name) => (name == field).then_some(offset),
            None => Some(offset + bits(kernel, kernel.type_by_id(member.ty)?, field)?),
        }
    })
}
