//! The plug-in, started as containerd starts it, beside an agent of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use leno_cni::enforced::EnforcedNamespaces;
use leno_cni::protocol::{CniCommand, CniRequest, Message};
use serde_json::{Value, json};

use super::PROGRAM;

/// A result with parts that Leno does not know, and numbers that a decoder could change.
const PREVIOUS: &str = r#"{"cniVersion": "1.0.0",  "interfaces":[{"name":"pods","mac":"aa:aa:aa:aa:aa:aa"},{"name":"eth0","sandbox":"/run/netns/x"}],
 "ips": [{"address":"10.78.1.1/24","interface":0},{"address":"10.78.1.7/24","interface":1},{"address":"fd00::7/64","interface":1}], "unknown": 1.50e2 }"#;

/// A node with the files that the plug-in looks for.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("cni.sock")
    }

    fn enforce(&self, namespaces: &[&str]) {
        let list = EnforcedNamespaces::new(namespaces.iter().copied()).unwrap();
        list.write(&self.folder.path().join("enforced")).unwrap();
    }

    fn configuration(&self) -> String {
        let options = json!({
            "socket": self.socket(), "enforced": self.folder.path().join("enforced"),
            "exempt": ["kube-system"], "timeoutMilliseconds": 300
        });
        format!(
            r#"{{"cniVersion":"1.0.0","name":"pods","type":"leno-cni","runtimeConfig":{{}},"leno":{options},"prevResult":{PREVIOUS}}}"#
        )
    }

    /// An agent that answers each line with the next answer, and then ends.
    fn agent(&self, answers: Vec<&'static str>) -> std::thread::JoinHandle<Vec<CniRequest>> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || {
            answers
                .iter()
                .map(|answer| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut line = Vec::new();
                    BufReader::new(&stream).read_until(b'\n', &mut line).unwrap();
                    stream.write_all(answer.as_bytes()).unwrap();
                    CniRequest::from_line(&line).unwrap()
                })
                .collect()
        })
    }
}

/// The outcome of one start of the plug-in.
struct Outcome {
    success: bool,
    output: String,
    notices: String,
}

impl Outcome {
    /// The code and the text of an error.
    fn error(&self) -> (u64, String) {
        assert!(!self.success, "no error: {}", self.output);
        let error: Value = serde_json::from_str(&self.output).unwrap_or_else(|_| panic!("not JSON: {}", self.output));
        assert!(error["cniVersion"].is_string(), "{error}");
        (
            error["code"].as_u64().unwrap(),
            format!("{}; {}", error["msg"].as_str().unwrap(), error["details"].as_str().unwrap()),
        )
    }
}

fn start(command: &str, namespace: &str, netns: &str, configuration: &str) -> Outcome {
    let arguments = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=9f8-1"
    );
    start_with(
        &[
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "abc"),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", &arguments),
        ],
        configuration,
    )
}

fn start_with(variables: &[(&str, &str)], configuration: &str) -> Outcome {
    let mut child = Command::new(PROGRAM)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The plug-in may refuse its variables before it reads.
    let _ = child.stdin.take().unwrap().write_all(configuration.as_bytes());
    let ended = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { success: ended.status.success(), output: text(ended.stdout), notices: text(ended.stderr) }
}

/// A network namespace with a process in it, as a pod's sandbox has.
struct Sandbox(Child);

impl Sandbox {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "sh", "-c", "echo; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }

    fn netns(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_agent_learns_the_pod_and_the_result_passes_unchanged() {
    let (node, sandbox) = (Node::new(), Sandbox::new());
    let agent = node.agent(vec![
        "{\"result\":\"captured\"}\n",
        "{\"result\":\"captured\",\"later\":1}\n",
        "{\"result\":\"notEnrolled\"}\n",
    ]);
    for (command, output) in [("ADD", PREVIOUS), ("CHECK", ""), ("DEL", "")] {
        let outcome = start(command, "shop", &sandbox.netns(), &node.configuration());
        assert!(outcome.success, "{command}: {}", outcome.output);
        assert_eq!((outcome.output.as_str(), outcome.notices.as_str()), (output, ""), "{command}");
    }
    let requests = agent.join().unwrap();
    let commands: Vec<CniCommand> = requests.iter().map(|request| request.command).collect();
    assert_eq!(commands, [CniCommand::Add, CniCommand::Check, CniCommand::Del]);
    let request = &requests[0];
    assert_eq!(request.version, 1);
    assert_eq!((request.namespace.as_str(), request.pod.as_str()), ("shop", "cart-0"));
    assert_eq!((request.container_id.as_str(), request.uid.as_deref()), ("abc", Some("9f8-1")));
    let addresses: Vec<String> = request.addresses.iter().map(|address| address.to_string()).collect();
    assert_eq!(addresses, ["10.78.1.7", "fd00::7"]);
    let opened = std::fs::metadata(request.netns.as_ref().unwrap()).unwrap();
    let own = std::fs::metadata("/proc/self/ns/net").unwrap();
    assert_eq!(opened.ino(), std::fs::metadata(sandbox.netns()).unwrap().ino());
    assert_ne!(opened.ino(), own.ino());
}

#[test]
fn a_pod_that_the_agent_refuses_does_not_start() {
    let node = Node::new();
    let agent = node.agent(vec!["{\"result\":\"refused\",\"reason\":\"it has NET_ADMIN \\u001b[31m\"}\n"]);
    let (code, text) = start("ADD", "shop", "/run/netns/x", &node.configuration()).error();
    agent.join().unwrap();
    assert_eq!(code, 100);
    assert_eq!(text, "Leno refuses the pod shop/cart-0; it has NET_ADMIN \u{1b}[31m");
}

/// Starts a pod of each kind of namespace while the agent does not answer.
fn only_enforced_pods_are_refused(node: &Node, cause: &str) {
    node.enforce(&["shop", "kube-system"]);
    let (code, text) = start("ADD", "shop", "/run/netns/x", &node.configuration()).error();
    assert_eq!(code, 11);
    assert!(text.contains("the namespace shop is enforced") && text.contains(cause), "{text}");
    assert_eq!(start("CHECK", "shop", "/run/netns/x", &node.configuration()).error().0, 11);

    let open = start("ADD", "blog", "/run/netns/x", &node.configuration());
    assert!(open.success, "{}", open.output);
    assert_eq!(open.output, PREVIOUS);
    assert!(
        open.notices.contains("the pod blog/cart-0 starts without Leno") && open.notices.contains(cause),
        "{}",
        open.notices
    );

    let removed = start("DEL", "shop", "", &node.configuration());
    assert!(removed.success, "{}", removed.output);
    assert!(removed.notices.contains("is removed without Leno"), "{}", removed.notices);

    // The list names it, and the configuration exempts it.
    let exempt = start("ADD", "kube-system", "/run/netns/x", &node.configuration());
    assert!(exempt.success, "{}", exempt.output);
    assert_eq!((exempt.output.as_str(), exempt.notices.as_str()), (PREVIOUS, ""));
}

#[test]
fn without_a_socket_only_enforced_pods_are_refused() {
    only_enforced_pods_are_refused(&Node::new(), "cannot connect to");
}

#[test]
fn a_socket_that_an_agent_left_is_no_agent() {
    let node = Node::new();
    drop(UnixListener::bind(node.socket()).unwrap());
    only_enforced_pods_are_refused(&node, "Connection refused");
}

#[test]
fn an_agent_that_hangs_is_away() {
    let node = Node::new();
    let _listener = UnixListener::bind(node.socket()).unwrap();
    only_enforced_pods_are_refused(&node, "no answer within 300 ms");
}

#[test]
fn an_agent_with_a_full_queue_is_away() {
    let node = Node::new();
    let _listener = UnixListener::bind(node.socket()).unwrap();
    // The queue of the standard library's listeners is bounded by the system.
    let mut queue = Vec::new();
    while let Some(stream) = connect_at_once(&node.socket()) {
        queue.push(stream);
    }
    only_enforced_pods_are_refused(&node, "cannot connect to");
}

/// Connects, or gives up if the queue is full.
fn connect_at_once(socket: &Path) -> Option<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    rustix::net::connect(&made, &SocketAddrUnix::new(socket).unwrap()).ok().map(|()| made.into())
}

#[test]
fn an_answer_that_is_none_of_the_protocol_is_none() {
    for answer in
        ["", "\n", "captured\n", "{\"result\":\"maybe\"}\n", "{\"result\":\"refused\"}\n", "{\"result\":\"captured\""]
    {
        let node = Node::new();
        node.enforce(&["shop"]);
        let agent = node.agent(vec![answer, answer]);
        assert_eq!(start("ADD", "shop", "/run/netns/x", &node.configuration()).error().0, 11, "{answer:?}");
        let open = start("ADD", "blog", "/run/netns/x", &node.configuration());
        assert!(open.success, "{answer:?}: {}", open.output);
        agent.join().unwrap();
    }
}

#[test]
fn a_node_without_a_list_starts_pods_and_one_with_a_damaged_list_does_not() {
    let node = Node::new();
    let open = start("ADD", "shop", "/run/netns/x", &node.configuration());
    assert!(open.success, "{}", open.output);
    assert!(open.notices.contains("this node has no list of enforced namespaces"), "{}", open.notices);
    std::fs::write(node.folder.path().join("enforced"), "shop\n\0\0\0").unwrap();
    let (code, text) = start("ADD", "blog", "/run/netns/x", &node.configuration()).error();
    assert_eq!(code, 11);
    assert!(text.contains("line 2"), "{text}");
    node.enforce(&[]);
    assert!(start("ADD", "shop", "/run/netns/x", &node.configuration()).success);
}

#[test]
fn containers_that_are_no_pods_are_left_alone() {
    let node = Node::new();
    std::fs::write(node.folder.path().join("enforced"), "damaged!").unwrap();
    let variables =
        [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "abc"), ("CNI_NETNS", "/run/netns/x"), ("CNI_IFNAME", "eth0")];
    let outcome = start_with(&variables, &node.configuration());
    assert!(outcome.success, "{}", outcome.output);
    assert_eq!((outcome.output.as_str(), outcome.notices.as_str()), (PREVIOUS, ""));
}

#[test]
fn the_node_stays_ready_without_an_agent() {
    let node = Node::new();
    node.enforce(&["shop"]);
    for command in ["STATUS", "GC"] {
        let outcome = start_with(&[("CNI_COMMAND", command)], &node.configuration());
        assert!(outcome.success, "{command}: {}", outcome.output);
        assert_eq!(outcome.output, "");
        assert_eq!(start_with(&[("CNI_COMMAND", command)], "{").error().0, 6);
    }
}

#[test]
fn versions_are_listed_in_the_version_of_the_question() {
    for (configuration, version) in [(r#"{"cniVersion":"0.4.0"}"#, "0.4.0"), ("", "1.1.0")] {
        let outcome = start_with(&[("CNI_COMMAND", "VERSION")], configuration);
        let answer: Value = serde_json::from_str(&outcome.output).unwrap();
        let expected =
            json!({"cniVersion": version, "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]});
        assert_eq!(answer, expected);
    }
}

#[test]
fn wrong_variables_are_named() {
    let node = Node::new();
    let right = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0"),
    ];
    for (name, value) in [
        ("CNI_COMMAND", "add"),
        ("CNI_COMMAND", ""),
        ("CNI_CONTAINERID", ""),
        ("CNI_CONTAINERID", "../x"),
        ("CNI_NETNS", ""),
        ("CNI_IFNAME", "a/b"),
        ("CNI_IFNAME", "sixteen-letters-"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=Shop;K8S_POD_NAME=cart-0"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=shop\n;K8S_POD_NAME=cart-0"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=shop"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=/"),
    ] {
        let variables = right.map(|(known, is)| if known == name { (name, value) } else { (known, is) });
        let (code, text) = start_with(&variables, &node.configuration()).error();
        assert_eq!(code, 4, "{name}={value}");
        assert!(text.contains(name), "{name}={value}: {text}");
    }
}

#[test]
fn wrong_configurations_are_named() {
    let right = Node::new().configuration();
    for (from, to, code, expected) in [
        ("\"cniVersion\":\"1.0.0\"", "\"cniVersion\":\"0.2.0\"", 1, "`cniVersion` is `0.2.0`"),
        ("\"cniVersion\":\"1.0.0\",", "", 1, "`cniVersion` is `0.1.0`"),
        ("\"timeoutMilliseconds\":300", "\"timeoutMilliseconds\":0", 7, "`timeoutMilliseconds`"),
        ("\"timeoutMilliseconds\":300", "\"timeout\":300", 6, "`timeout`"),
        ("[\"kube-system\"]", "[\"kube_system\"]", 7, "`kube_system`"),
        ("[\"kube-system\"]", "\"kube-system\"", 6, "a sequence"),
        ("\"prevResult\":", "\"other\":", 7, "`prevResult`"),
        (PREVIOUS, "null", 7, "`prevResult`"),
        (PREVIOUS, "[]", 6, "`prevResult`"),
        ("10.78.1.7/24", "10.78.1.700/24", 6, "`10.78.1.700/24`"),
        ("{\"cniVersion\"", "{{\"cniVersion\"", 6, "line 1"),
    ] {
        let configuration = right.replacen(from, to, 1);
        assert_ne!(configuration, right, "{from}");
        let (is, text) = start("ADD", "shop", "/run/netns/x", &configuration).error();
        assert_eq!(is, code, "{from} -> {to}: {text}");
        assert!(text.contains(expected), "{from} -> {to}: {text}");
    }
    let (code, text) = start("ADD", "shop", "/run/netns/x", &" ".repeat((1 << 20) + 1)).error();
    assert_eq!((code, text.contains("too long")), (6, true), "{text}");
}
