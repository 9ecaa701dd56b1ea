//! Pulls from Debian's docker-registry, and images that other tools made or take.

use crate::support::registry::{DockerRegistry, Fake, insecure, whole};
use crate::support::{self, pull, run, tool, tree};
use leno_files::FileAccess;
use leno_oci::layout::{Builder, Layer, push};
use leno_oci::{AddressCheck, Credentials, Error, Progress, Reference, Registries, Registry, Resolver, Stage, Store};
use leno_testkit::keys::CertificateAuthority;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `user:secret`, with bcrypt.
const HTPASSWD: &str = "user:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

fn example() -> Builder {
    let base = Layer::new().folder("tmp", 0o1777).file("bin/tool", "#!/bin/sh\n", 0o755).symlink("bin/sh", "tool");
    let noise: Vec<u8> = (0..300_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let app = Layer::new().file("app/main", noise, 0o755).file("app/config/a.json", "{}", 0o640).whiteout("bin/sh");
    Builder::new()
        .layer(base)
        .layer(app)
        .entrypoint(&["/app/main"])
        .cmd(&["--serve"])
        .env("PATH", "/bin")
        .env("MODE", "a=b")
        .user("1000:1000")
        .working_dir("/app")
        .stop_signal("SIGINT")
        .expose("8080/tcp")
}

fn opened(folder: &Path, registries: Registries) -> Store {
    Store::open(&folder.join("store"), Default::default(), registries).unwrap()
}

/// A layout or an archive that the test may name.
fn own(store: &Store, reference: &str) -> Reference {
    store.reference(reference).unwrap().named_by("test", &FileAccess::Any)
}

#[tokio::test]
async fn an_image_is_the_same_bytes_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = example().write(&folder.path().join("a"), "1").unwrap();
    let second = example().write(&folder.path().join("b"), "1").unwrap();
    assert_eq!(first, second);
    let other = example().env("X", "").write(&folder.path().join("a"), "2").unwrap();
    assert_ne!(first, other);
    let store = support::store(&folder.path().join("store"));
    let layout = format!("oci:{}", folder.path().join("a").display());
    assert_eq!(store.resolve(&own(&store, &format!("{layout}:1"))).await.unwrap(), first);
    assert_eq!(store.resolve(&own(&store, &format!("{layout}:2"))).await.unwrap(), other);
    let error = store.resolve(&own(&store, &layout)).await.unwrap_err().to_string();
    assert!(error.contains("2 images of any tag; its tags are: 1, 2"), "{error}");
    let error = store.resolve(&own(&store, &format!("{layout}:3"))).await.unwrap_err().to_string();
    assert!(error.contains("0 images with the tag `3`"), "{error}");
}

#[tokio::test]
async fn an_image_goes_to_a_registry_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(folder.path(), "");
    let layout = folder.path().join("layout");
    let digest = example().write(&layout, "1").unwrap();
    let to = Reference::parse(&format!("{}/team/example:1", registry.host), None).unwrap();
    assert_eq!(push(&layout, "1", &to, insecure(&[&registry.host])).await.unwrap(), digest);

    let store = opened(folder.path(), insecure(&[&registry.host]));
    assert_eq!(store.resolve(&to).await.unwrap(), digest);
    let error = store.pull(&to, &Progress::default()).await.unwrap_err().to_string();
    assert!(error.contains("it has no digest; resolve its tag first"), "{error}");
    let progress = Progress::default();
    let image = store.pull(&to.with_digest(digest), &progress).await.unwrap();
    let snapshot = progress.snapshot();
    assert_eq!((snapshot.stage, snapshot.layers, snapshot.layers_total), (Stage::Done, 2, 2));
    assert!(snapshot.bytes > 100_000 && snapshot.bytes == snapshot.bytes_total, "{snapshot:?}");

    assert_eq!(image.digest(), digest);
    assert_eq!((image.entrypoint(), image.cmd()), (&["/app/main".to_owned()][..], &["--serve".to_owned()][..]));
    assert_eq!(image.env(), ["PATH=/bin", "MODE=a=b"]);
    assert_eq!(
        (image.user(), image.working_dir(), image.stop_signal()),
        (Some("1000:1000"), Some("/app"), Some("SIGINT"))
    );
    assert_eq!(image.exposed_ports(), ["8080/tcp"]);
    let layers = image.layers();
    assert_eq!(layers.len(), 2);
    assert_eq!(fs::read_link(layers[0].join("bin/sh")).unwrap(), Path::new("tool"));
    assert_eq!(fs::metadata(layers[1].join("app/main")).unwrap().len(), 1_200_000);
    assert_eq!(tree(&layers[1])[Path::new("app/config/a.json")].mode, 0o100640);

    drop(registry);
    let again = store.pull(&to.with_digest(digest), &Progress::default()).await.unwrap();
    assert_eq!(again.layers(), layers, "what is here needs no registry");
    let gone = store.pull(&to.with_digest(leno_oci::Digest::of(b"")), &Progress::default()).await.unwrap_err();
    assert!(matches!(gone, Error::Unreachable { .. }), "{gone}");
}

#[tokio::test]
async fn what_is_not_there_is_said_in_the_words_of_the_registry() {
    let folder = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(folder.path(), "");
    let store = opened(folder.path(), insecure(&[&registry.host]));
    let error = pull(&store, &format!("{}/nothing:1", registry.host)).await.unwrap_err();
    assert!(matches!(error, Error::Answer { status: Some(404), .. }), "{error:?}");
    assert!(error.to_string().contains("MANIFEST_UNKNOWN"), "{error}");
    drop(store);
    let store = opened(folder.path(), support::registries());
    let error = pull(&store, &format!("{}/nothing:1", registry.host)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "plain HTTP only where it is allowed: {error}");
}

#[tokio::test]
async fn a_registry_may_want_a_password() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("htpasswd"), HTPASSWD).unwrap();
    let auth = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", folder.path().join("htpasswd").display());
    let registry = DockerRegistry::start(folder.path(), &auth);
    let layout = folder.path().join("layout");
    example().write(&layout, "1").unwrap();
    let name = format!("{}/example:1", registry.host);
    let with = |password: &str| {
        let mut registries = insecure(&[&registry.host]);
        let credentials = Credentials::Basic { username: "user".to_owned(), password: password.to_owned() };
        registries.registries.get_mut(&registry.host).unwrap().credentials = Some(credentials);
        registries
    };
    push(&layout, "1", &Reference::parse(&name, None).unwrap(), with("secret")).await.unwrap();
    for wrong in [insecure(&[&registry.host]), with("wrong")] {
        let error = pull(&opened(folder.path(), wrong), &name).await.unwrap_err();
        assert!(matches!(error, Error::Answer { status: Some(401), .. }), "{error:?}");
        assert!(error.to_string().contains("check the credentials"), "{error}");
    }
    pull(&opened(folder.path(), with("secret")), &name).await.unwrap();

    fs::remove_dir_all(folder.path().join("store")).unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, format!(r#"{{"auths": {{"{}": {{"auth": "dXNlcjpzZWNyZXQ="}}}}}}"#, registry.host)).unwrap();
    let registries = Registries { docker_config: Some(config), ..insecure(&[&registry.host]) };
    pull(&opened(folder.path(), registries), &name).await.unwrap();
}

#[tokio::test]
async fn a_registry_may_have_a_certificate_of_a_private_authority() {
    let folder = tempfile::tempdir().unwrap();
    let authority = CertificateAuthority::default();
    let (certificate, key) = authority.issue(&["127.0.0.1"]);
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = (write("certificate.pem", certificate.pem()), write("key.pem", key.serialize_pem()));
    let tls = format!("  tls: {{certificate: {}, key: {}}}\n", certificate.display(), key.display());
    let registry = DockerRegistry::start(folder.path(), &tls);
    let layout = folder.path().join("layout");
    example().write(&layout, "1").unwrap();
    let name = format!("{}/example:1", registry.host);
    let trusting = || Registries { ca_bundle: Some(write("ca.pem", authority.pem())), ..support::registries() };
    push(&layout, "1", &Reference::parse(&name, None).unwrap(), trusting()).await.unwrap();
    let error = pull(&opened(folder.path(), support::registries()), &name).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { reason, .. } if reason.contains("UnknownIssuer")), "{error}");
    pull(&opened(folder.path(), trusting()), &name).await.unwrap();

    // Certificate authorities of one registry are trusted for that registry only.
    let of = |host: &str| {
        let registry = Registry { ca_file: Some(write("ca.pem", authority.pem())), ..Registry::default() };
        Registries { registries: [(host.to_owned(), registry)].into(), ..support::registries() }
    };
    let resolve = async |registries| {
        let resolver = Resolver::new(registries).unwrap();
        resolver.resolve(&resolver.reference(&name).unwrap()).await
    };
    resolve(of(&registry.host)).await.unwrap();
    let error = resolve(of("other.example")).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { reason, .. } if reason.contains("UnknownIssuer")), "{error}");

    let empty = Registries { ca_bundle: Some(write("empty.pem", String::new())), ..support::registries() };
    let error = Store::open(&folder.path().join("other"), Default::default(), empty).unwrap_err().to_string();
    assert!(error.contains("empty.pem: no certificate in it"), "{error}");
}

#[tokio::test]
async fn skopeo_and_umoci_see_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(folder.path(), "");
    let layout = folder.path().join("layout");
    let digest = example().write(&layout, "1").unwrap();
    let from = format!("oci:{}:1", layout.display());
    let remote = format!("docker://{}/copied:1", registry.host);
    run(tool("skopeo").args(["--insecure-policy", "copy", "-q", "--dest-tls-verify=false", &from, &remote]));
    let store = opened(folder.path(), insecure(&[&registry.host]));
    let image = pull(&store, &format!("{}/copied:1", registry.host)).await.unwrap();
    assert_eq!(image.digest(), digest);

    // And back: into a layout, and into an archive, plain or compressed.
    let back = folder.path().join("back");
    run(tool("skopeo")
        .args(["--insecure-policy", "copy", "-q", "--src-tls-verify=false", &remote])
        .arg(format!("oci:{}:1", back.display())));
    let archive = folder.path().join("archive.tar");
    run(tool("skopeo")
        .args(["--insecure-policy", "copy", "-q", &from])
        .arg(format!("oci-archive:{}:1", archive.display())));
    run(tool("gzip").arg("-k").arg(&archive));
    for other in [
        format!("oci:{}:1", back.display()),
        format!("oci-archive:{}:1", archive.display()),
        format!("oci-archive:{}.gz", archive.display()),
    ] {
        let elsewhere = tempfile::tempdir().unwrap();
        let image = pull(&support::store(elsewhere.path()), &other).await.unwrap();
        assert_eq!((image.digest(), image.layers().len()), (digest, 2), "{other}");
        assert_eq!(fs::read_dir(elsewhere.path().join("tmp")).unwrap().count(), 0);
    }

    // With zstd, as the C library makes it.
    let (plain, zstd) = (folder.path().join("plain"), folder.path().join("zstd"));
    example().uncompressed().write(&plain, "1").unwrap();
    run(tool("skopeo")
        .args(["--insecure-policy", "copy", "-q", "--dest-compress-format=zstd"])
        .arg(format!("oci:{}:1", plain.display()))
        .arg(format!("oci:{}:1", zstd.display())));
    let blobs = fs::read_dir(zstd.join("blobs/sha256")).unwrap().map(|blob| fs::read(blob.unwrap().path()).unwrap());
    assert_eq!(blobs.filter(|blob| blob.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])).count(), 2);
    let elsewhere = tempfile::tempdir().unwrap();
    let compressed = pull(&support::store(elsewhere.path()), &format!("oci:{}:1", zstd.display())).await.unwrap();
    assert_ne!(compressed.digest(), digest);
    assert_eq!(tree(&compressed.layers()[1]), tree(&image.layers()[1]));

    let bundle = folder.path().join("bundle");
    run(tool("umoci").args(["unpack", "--image"]).arg(format!("{}:1", back.display())).arg(&bundle));
    compare(&image.layers(), &bundle.join("rootfs"), folder.path());
}

/// Compares the files that overlayfs shows of our layers with those that umoci unpacks.
fn compare(layers: &[std::path::PathBuf], rootfs: &Path, folder: &Path) {
    let merged = folder.join("merged");
    fs::create_dir(&merged).unwrap();
    let lower: Vec<String> = layers.iter().rev().map(|layer| layer.display().to_string()).collect();
    run(tool("mount").args(["-t", "overlay", "overlay", "-o", &format!("lowerdir={}", lower.join(":"))]).arg(&merged));
    let (mut ours, mut theirs) = (tree(&merged), tree(rootfs));
    run(tool("umount").arg(&merged));
    // umoci gives the root the time at which it unpacked, and folders that lost an entry the time
    // of that.
    for tree in [&mut ours, &mut theirs] {
        for (path, seen) in tree.iter_mut() {
            if path == Path::new("") || path == Path::new("bin") {
                seen.mtime = (0, 0);
            }
        }
    }
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (path, seen) in &ours {
        assert_eq!(seen, &theirs[path], "{}", path.display());
    }
}

#[tokio::test]
async fn umoci_unpacks_the_same_owners_modes_attributes_and_links() {
    let folder = tempfile::tempdir().unwrap();
    // umoci makes the layer from a tree that contains all of it.
    let (layout, bundle) = (folder.path().join("layout"), folder.path().join("made"));
    let image = format!("{}:1", layout.display());
    run(tool("umoci").args(["init", "--layout"]).arg(&layout));
    run(tool("umoci").args(["new", "--image", &image]));
    run(tool("umoci").args(["unpack", "--image", &image]).arg(&bundle));
    let root = bundle.join("rootfs");
    let long = root.join("l".repeat(200)).join("n".repeat(200));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("file"), "x").unwrap();
    fs::write(root.join("suid"), vec![7; 100_000]).unwrap();
    fs::hard_link(root.join("suid"), root.join("zweiter name ü")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", root.join("link")).unwrap();
    std::os::unix::fs::chown(root.join("suid"), Some(100_001), Some(7)).unwrap();
    std::os::unix::fs::lchown(root.join("link"), Some(5), Some(6)).unwrap();
    fs::set_permissions(root.join("suid"), std::os::unix::fs::PermissionsExt::from_mode(0o6751)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("suid"), "user.a", b"1\n2", flags).unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(long.join("file"), "security.capability", &capability, flags).unwrap();
    run(tool("umoci").args(["repack", "--image", &image]).arg(&bundle));

    let theirs = folder.path().join("theirs");
    run(tool("umoci").args(["unpack", "--image", &image]).arg(&theirs));
    let store = support::store(&folder.path().join("store"));
    let image = pull(&store, &format!("oci:{image}")).await.unwrap();
    assert_eq!(image.layers().len(), 1);
    let (mut ours, mut theirs) = (tree(&image.layers()[0]), tree(&theirs.join("rootfs")));
    for tree in [&mut ours, &mut theirs] {
        tree.get_mut(Path::new("")).unwrap().mtime = (0, 0);
    }
    assert!(ours.len() >= 7, "{:?}", ours.keys());
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (path, seen) in &ours {
        assert_eq!(seen, &theirs[path], "{}", path.display());
    }
}

#[tokio::test]
async fn mirrors_are_asked_first() {
    let folder = tempfile::tempdir().unwrap();
    let registry = DockerRegistry::start(folder.path(), "");
    let layout = folder.path().join("layout");
    example().write(&layout, "1").unwrap();
    let to = Reference::parse(&format!("{}/example:1", registry.host), None).unwrap();
    push(&layout, "1", &to, insecure(&[&registry.host])).await.unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let broken = Fake::start(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        hyper::Response::builder().status(404).body(whole("")).unwrap()
    })
    .await;
    let mut registries = insecure(&[&registry.host, &broken.host]);
    // The name of the origin does not resolve: all documents come from the second mirror.
    let origin = Registry { mirrors: vec![broken.host.clone(), registry.host.clone()], ..Registry::default() };
    registries.registries.insert("origin.invalid".to_owned(), origin);
    registries.default_registry = Some("origin.invalid".to_owned());
    let image = pull(&opened(folder.path(), registries), "example:1").await.unwrap();
    assert_eq!(image.layers().len(), 2);
    assert_eq!(asked.load(Ordering::SeqCst), 5, "tag, manifest, configuration and two layers");
}

#[tokio::test]
async fn an_address_that_a_check_refuses_is_not_connected_to() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let resolver = Resolver::new(support::registries()).unwrap();
    let loopback = AddressCheck::new(|address| match address.is_loopback() {
        true => Err("no loopback here".to_owned()),
        false => Ok(()),
    });
    let checked = resolver.checked(&loopback).unwrap();
    let hosts = [format!("localhost:{port}"), format!("127.0.0.1:{port}")];
    for host in &hosts {
        let reference = resolver.reference(&format!("{host}/team/example:1")).unwrap();
        let error = checked.resolve(&reference).await.unwrap_err().to_string();
        assert!(error.contains("no loopback here"), "{host}: {error}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
    // The operator's settings decide: hosts that they name are not judged, nor are any hosts
    // without a check.
    let named = Resolver::new(insecure(&[&hosts[0]])).unwrap().checked(&loopback).unwrap();
    let reference = named.reference(&format!("{}/team/example:1", hosts[0])).unwrap();
    assert!(!named.resolve(&reference).await.unwrap_err().to_string().contains("no loopback here"));
    let reference = resolver.reference(&format!("{}/team/example:1", hosts[1])).unwrap();
    assert!(!resolver.resolve(&reference).await.unwrap_err().to_string().contains("no loopback here"));
    assert!(connections.load(Ordering::SeqCst) >= 2);
}
