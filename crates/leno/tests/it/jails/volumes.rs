//! Folders that the program of a function or a job can write to.

use super::{EXPOSE, attempt, intruder_function, start};

#[test]
fn a_command_writes_to_its_volumes_and_nowhere_else() {
    let volumes = "  volumes: [{path: /var/lib/app, size: 1Mi}]\n";
    let mesh = start("auto", &intruder_function("").replace(EXPOSE, &format!("{volumes}{EXPOSE}")));
    let written = attempt(&mesh, "write", &["/var/lib/app/file"]);
    assert!(written.starts_with("done"), "{written}");
    assert!(attempt(&mesh, "write", &["/var/lib/file"]).starts_with("refused"));
    assert_eq!(mesh.instances("test/intruder")[0]["isolation"], "strict");
}

#[test]
fn a_job_writes_to_its_volumes() {
    let job = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {{name: report, namespace: test}}\nspec:\n  \
         command: [sh, -c, \"echo sum > /srv/out/report && cat /srv/out/report && touch /srv/other || echo closed\"]\n  \
         workingDirectory: public\n  volumes: [{{path: /srv/out}}]\n"
    );
    let mesh = start("strict", &(intruder_function("") + &job));
    mesh.line("sum");
    mesh.line("closed");
}
