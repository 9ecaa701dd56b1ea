//! Another process listens on an instance's address.

use crate::support::*;
use leno_model::Readiness;
use leno_supervisor::{AcquireError, ConnectError, NotTheInstance, Supervisor};
use leno_testkit::{eventually_async, free_port};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Whether not a single byte arrives on any connection that waits at this listener.
fn nothing_arrived(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    loop {
        let Ok((mut stream, _)) = listener.accept() else { return true };
        stream.set_nonblocking(false).unwrap();
        // The client has closed the connection by now.
        stream.set_read_timeout(Some(FOREVER)).unwrap();
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            _ => return false,
        }
    }
}

/// Another process that serves HTTP on that port, as another account if this one may do that.
struct Other {
    child: Child,
    account: Option<u32>,
}

impl Other {
    fn on(port: u16, account: Option<u32>) -> Self {
        let mut command = Command::new(SERVER);
        command.env("PORT", port.to_string()).stdout(Stdio::null()).current_dir("/");
        if let Some(account) = account {
            command.uid(account).gid(account);
        }
        let child = command.spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, account }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Another account, if this one can act as others.
fn nobody() -> Option<u32> {
    const NOBODY: u32 = 65534;
    // It must be able to run the test's program, too.
    let mut command = Command::new(SERVER);
    let runs = command.uid(NOBODY).gid(NOBODY).stderr(Stdio::null()).status().is_ok();
    if !runs {
        eprintln!("SKIPPED for another account: only root can run programs as one, and only those it can reach");
    }
    runs.then_some(NOBODY)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_on_the_port_gets_nothing_and_the_start_fails() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    for readiness in [Readiness::Tcp, Readiness::Http("/healthz?token=secret".to_owned())] {
        // The instance starts, but the test has its port.
        let mut command = command(&["sleep", "1000"]);
        command.port = Some(listener.local_addr().unwrap().port());
        command.readiness = readiness;
        command.grace = Duration::ZERO;
        let (supervisor, function) = start(&Witness::default(), command);
        let AcquireError::PortTaken { reason } = function.acquire(&[]).await.unwrap_err() else { panic!() };
        let holder = format!("is held by process {}", std::process::id());
        assert!(reason.contains(&holder), "{reason}");
        assert!(nothing_arrived(&listener));
        supervisor.shutdown(FOREVER).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_is_named_whatever_its_account() {
    for account in [None, nobody()] {
        let port = free_port();
        let other = Other::on(port, account);
        let mut command = command(&["sleep", "1000"]);
        (command.port, command.grace) = (Some(port), Duration::ZERO);
        let (supervisor, function) = start(&Witness::default(), command);
        let AcquireError::PortTaken { reason } = function.acquire(&[]).await.unwrap_err() else { panic!() };
        assert!(reason.contains(&format!("process {} (`leno-test-funct", other.child.id())), "{reason}");
        if let Some(account) = other.account {
            assert!(reason.contains(&format!("account {account}")), "{reason}");
        }
        supervisor.shutdown(FOREVER).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_the_port_later_gets_nothing_and_another_instance_starts() {
    let witness = Witness::default();
    // A program that closes its listener on request, and lives on.
    let script = "import os,socket,time
l=socket.create_server(('127.0.0.1',int(os.environ['PORT'])))
kept=[]
while not kept or kept[-1].recv(1)!=b'x':
    kept.append(l.accept()[0])
l.close()
time.sleep(1000)";
    if Command::new("python3").arg("-c").arg("").status().is_err() {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let mut listens_for_a_while = command(&["python3", "-c", script]);
    listens_for_a_while.grace = Duration::ZERO;
    let (supervisor, function) = start(&witness, listens_for_a_while);
    let lease = function.acquire(&[]).await.unwrap();
    let address = lease.address();

    let mut first = lease.connect().await.unwrap().into_std().unwrap();
    first.write_all(b"x").unwrap();
    let taken = tokio::task::spawn_blocking(move || {
        loop {
            match TcpListener::bind(address) {
                Ok(listener) => return listener,
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    });
    let _taken = taken.await.unwrap();
    let refused = lease.connect().await.unwrap_err();
    assert!(is_stranger(&refused), "{refused}");
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    eventually_async("it is draining", || lease.is_draining()).await;
    eventually_async("it is said why", || function.status().last_failure.is_some()).await;
    let failure = function.status().last_failure.unwrap();
    assert!(failure.contains("somebody else has its port"), "{failure}");
    drop(lease);

    let next = function.acquire(&[]).await.unwrap();
    assert_ne!(next.address(), address);
    drop(next);
    supervisor.shutdown(FOREVER).await;
}

fn is_stranger(refused: &ConnectError) -> bool {
    matches!(refused, ConnectError::Unproven(NotTheInstance::Stranger { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_shares_the_port_gets_nothing() {
    let script = "import os,socket,time
l=socket.socket()
l.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEPORT,1)
l.bind(('127.0.0.1',int(os.environ['PORT'])))
l.listen(100)
time.sleep(1000)";
    let mut sharing = command(&["python3", "-c", script]);
    sharing.grace = Duration::ZERO;
    if Command::new("python3").arg("-c").arg("").status().is_err() {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let (supervisor, function) = start(&Witness::default(), sharing);
    let lease = function.acquire(&[]).await.unwrap();
    let address = lease.address();
    let SocketAddr::V4(_) = address else { panic!() };
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 100).unwrap();
    let mine = TcpListener::from(socket);
    let refused = lease.connect().await.unwrap_err();
    assert!(is_stranger(&refused), "{refused}");
    assert!(nothing_arrived(&mine));
    eventually_async("it is draining", || lease.is_draining()).await;
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_processes_of_their_own_are_the_instance() {
    let accept_in_child = "import os,socket,time
l=socket.create_server(('127.0.0.1',int(os.environ['PORT'])))
l.settimeout(0.1)
for detach in [lambda: None, os.setsid]:
    if os.fork()==0:
        detach()
        parent=os.getppid()
        while os.getppid()==parent:
            try: s,_=l.accept()
            except TimeoutError: continue
            s.settimeout(60)
            s.recv(1)
            s.sendall(b'HTTP/1.1 200 -\\r\\ncontent-length: 2\\r\\n\\r\\nok')
l.close()
time.sleep(1000)";
    if Command::new("python3").arg("-c").arg("").status().is_err() {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let mut forks = command(&["sh", "-c", "python3 -c \"$CODE\"; true"]);
    forks.env.insert("CODE".to_owned(), accept_in_child.to_owned());
    forks.grace = Duration::ZERO;
    let (supervisor, function) = start(&Witness::default(), forks);
    let lease = function.acquire(&[]).await.unwrap();
    for _ in 0..20 {
        lease.connect().await.unwrap();
    }
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}

/// The kernel shows such a server no connection before there are bytes to read, and the node sends
/// none before it has verified the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_to_see_bytes_first_is_the_instance() {
    let script = "import os,socket
l=socket.socket()
l.setsockopt(socket.IPPROTO_TCP,socket.TCP_DEFER_ACCEPT,30)
l.bind(('127.0.0.1',int(os.environ['PORT'])))
l.listen(100)
while True:
    s,_=l.accept()
    s.recv(1000)
    s.sendall(b'HTTP/1.1 200 -\\r\\ncontent-length: 2\\r\\n\\r\\nok')
    s.close()";
    if Command::new("python3").arg("-c").arg("").status().is_err() {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let mut deferring = command(&["python3", "-c", script]);
    (deferring.readiness, deferring.grace) = (Readiness::Http("/".to_owned()), Duration::ZERO);
    let (supervisor, function) = start(&Witness::default(), deferring);
    let lease = function.acquire(&[]).await.unwrap();
    lease.connect().await.unwrap();
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proof_is_cheap() {
    let (supervisor, function): (Supervisor, _) = start(&Witness::default(), command(&[SERVER]));
    let lease = function.acquire(&[]).await.unwrap();
    let rounds = 200;
    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        let began = std::time::Instant::now();
        lease.connect().await.unwrap();
        spent += began.elapsed();
    }
    // Printed, not judged, because a test does not know how busy the machine is.
    eprintln!("a connection and its proof take {:?}", spent / rounds);
    drop(lease);
    supervisor.shutdown(FOREVER).await;
}
