//! Settings of the machine that a document names, and the names of a program's output.

use super::{all, open, program, run};
use leno_files::FileAccess;
use leno_jail::Program;
use std::path::Path;

/// A folder of `/etc` that every Linux has, and no jail shows by itself.
const FOLDER: &str = "/etc/security";

#[tokio::test]
async fn folders_of_etc_are_shown_where_documents_may_name_them() {
    if !Path::new(FOLDER).is_dir() {
        eprintln!("SKIPPED: no {FOLDER}");
        return;
    }
    let jails = open(0).await;
    let named = |access: FileAccess| Program {
        visible: vec![FOLDER.into()],
        access,
        ..program("test -d /etc/security && echo shown; test -e /etc/shadow || echo hidden")
    };
    for access in [FileAccess::Any, FileAccess::Beneath(vec!["/etc".into()])] {
        let mut jail = jails.take().await.unwrap();
        assert_eq!(all(run(&mut jail, named(access)).await.unwrap()).await, "shown\nhidden\n");
    }
    let mut jail = jails.take().await.unwrap();
    let refused = run(&mut jail, named(FileAccess::Beneath(Vec::new()))).await.unwrap_err().to_string();
    assert!(
        refused.contains("a jail cannot show /etc/security: ") && refused.contains("may name no files"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_program_opens_its_output_by_name() {
    let jails = open(0).await;
    let mut jail = jails.take().await.unwrap();
    let output =
        run(&mut jail, program("echo out > /dev/stdout; echo err >> /dev/stderr; id -un; ls -d /var/run/")).await;
    assert_eq!(all(output.unwrap()).await, "out\nerr\nleno\n/var/run/\n");
}
