//! Images of programs of this machine.

use super::cluster::Cluster;
use anyhow::{Context, ensure};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Makes an image of programs, each with its path in the image, and of the libraries that they
/// load. All nodes get it. The first program is the one that starts.
pub(super) fn load(cluster: &Cluster, folder: &Path, name: &str, programs: &[(&Path, &str)]) -> anyhow::Result<()> {
    let (mut files, mut libraries) = (Vec::new(), BTreeSet::new());
    for (program, path) in programs {
        let stripped = folder.join(path.trim_start_matches('/').replace('/', "-"));
        let done = Command::new("strip").arg("-o").arg(&stripped).arg(program).status().context("strip (binutils)")?;
        ensure!(done.success(), "{} cannot be stripped", program.display());
        files.push(format!("{}={path}", stripped.display()));
        // A static program has none, and ldd fails.
        let listed = Command::new("ldd").arg(program).output().context("ldd")?;
        libraries.extend(String::from_utf8_lossy(&listed.stdout).lines().filter_map(library));
    }
    files.extend(libraries.into_iter().map(|file| format!("{file}={file}")));
    let image = folder.join("image.tar").display().to_string();
    let mut arguments = vec!["image", name, &image];
    arguments.extend(files.iter().map(String::as_str));
    arguments.extend(["--", programs.first().context("a program")?.1]);
    cluster.run(&arguments)?;
    cluster.run(&["load-image", &image]).map(drop)
}

/// The file of a line of ldd: `libc.so.6 => /lib/libc.so.6 (0x…)`, or a loader without an arrow.
fn library(line: &str) -> Option<String> {
    let path = line.split_once(" (0x")?.0;
    let path = path.rsplit_once(" => ").map_or(path, |(_, path)| path).trim();
    path.starts_with('/').then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ldd_name_files() {
        assert_eq!(library("\tlibc.so.6 => /lib/x/libc.so.6 (0x7f)").as_deref(), Some("/lib/x/libc.so.6"));
        assert_eq!(library("\t/lib64/ld-linux-x86-64.so.2 (0x7f)").as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library("\tlinux-vdso.so.1 (0x7f)"), None);
        assert_eq!(library("\tstatically linked"), None);
    }
}
