//! Which images the store keeps, and for how long.

use crate::support::layout::{Blobs, CONFIG, MANIFEST};
use crate::support::{pull, registries, run, tool};
use leno_oci::layout::{Builder, Layer};
use leno_oci::{Digest, Error, Limits, Result, Store};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

fn noise(seed: u32, length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 13) as u8)
        .collect()
}

/// An image of these layers, a MiB each, named by a letter.
fn image(folder: &Path, layers: &str) -> String {
    let layer = |name: char| Layer::new().file(&name.to_string(), noise(name as u32, MIB), 0o644);
    let builder = layers.chars().fold(Builder::new().uncompressed(), |builder, name| builder.layer(layer(name)));
    builder.write(&folder.join("layout"), layers).unwrap();
    format!("oci:{}:{layers}", folder.join("layout").display())
}

fn open(folder: &Path, mib: u64) -> Store {
    Store::open(&folder.join("store"), Limits { store_bytes: mib << 20, ..Limits::default() }, registries()).unwrap()
}

fn layers(folder: &Path) -> usize {
    fs::read_dir(folder.join("store/layers")).unwrap().count()
}

#[tokio::test]
async fn the_least_recently_used_image_makes_space() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = open(folder, 4);
    let (a, b, c, d) = (image(folder, "a"), image(folder, "b"), image(folder, "c"), image(folder, "d"));
    let a_digest = pull(&store, &a).await.unwrap().digest();
    let b_digest = pull(&store, &b).await.unwrap().digest();
    let c_digest = pull(&store, &c).await.unwrap().digest();
    assert!(store.used_bytes() > 3 << 20 && store.used_bytes() < 4 << 20, "{}", store.used_bytes());
    // After another use of `a`, `b` is the one that was used least recently.
    drop(store.image(a_digest).unwrap());
    let d_digest = pull(&store, &d).await.unwrap().digest();
    let there = [a_digest, b_digest, c_digest, d_digest].map(|digest| store.image(digest).is_some());
    assert_eq!(there, [true, false, true, true]);
    assert_eq!(layers(folder), 3);
    assert_eq!(fs::read_dir(folder.join("store/tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_in_use_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = open(folder, 4);
    let shared = pull(&store, &image(folder, "xa")).await.unwrap();
    let clone = shared.clone();
    let other = pull(&store, &image(folder, "xb")).await.unwrap();
    let other_digest = other.digest();
    assert_eq!(layers(folder), 3, "`x` is there once");
    assert_eq!(shared.layers()[0], other.layers()[0]);
    let too_much = image(folder, "pq");
    let error = pull(&store, &too_much).await.unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(error.to_string().contains("raise the limit"), "{error}");
    assert!(shared.layers().iter().chain(&other.layers()).all(|layer| layer.exists()));

    drop(other);
    drop(shared);
    // The files of the failed pull are removed in the background, and take space until then.
    let image = image(folder, "p");
    let begin = std::time::Instant::now();
    let new = loop {
        match pull(&store, &image).await {
            Err(Error::Full { .. }) if begin.elapsed().as_secs() < 60 => {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await
            }
            pulled => break pulled.unwrap(),
        }
    };
    assert!(store.image(other_digest).is_none(), "`xb` made space");
    assert!(
        clone.layers().iter().all(|layer| fs::read_dir(layer).unwrap().count() == 1),
        "`x` is still used by the clone"
    );
    drop((clone, new));
    let last = pull(&store, &too_much).await.unwrap();
    assert_eq!(last.layers().len(), 2);
    assert!(layers(folder) <= 3);
}

#[tokio::test]
async fn one_process_has_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), 100);
    let again = Store::open(&folder.path().join("store"), Limits::default(), registries()).unwrap_err();
    assert!(matches!(again, Error::InUse { .. }), "{again}");
    assert!(again.to_string().contains("is open in another process"), "{again}");
    let image = pull(&store, &image(folder.path(), "a")).await.unwrap();
    drop(store);
    assert!(
        Store::open(&folder.path().join("store"), Limits::default(), registries()).is_err(),
        "the lease still counts"
    );
    drop(image);
    open(folder.path(), 100);
}

#[tokio::test]
async fn images_survive_a_restart_and_leftovers_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let digest = pull(&open(folder, 100), &image(folder, "ab")).await.unwrap().digest();
    let broken = pull(&open(folder, 100), &image(folder, "c")).await.unwrap().digest();
    let place = folder.join("store");
    // The state after a crash: a partly unpacked layer, a layer of no image, an image without its
    // layer, truncated files.
    fs::create_dir_all(place.join("tmp/7/root/etc")).unwrap();
    fs::write(place.join("tmp/file"), "").unwrap();
    let orphan = place.join("layers").join(Digest::of(b"orphan").hex());
    fs::create_dir_all(orphan.join("root")).unwrap();
    fs::write(orphan.join("layer.json"), r#"{"bytes":5}"#).unwrap();
    fs::create_dir_all(place.join("layers").join(Digest::of(b"no size").hex()).join("root")).unwrap();
    fs::create_dir(place.join("layers/strange")).unwrap();
    let config = place.join("images").join(broken.hex()).join("config.json");
    fs::write(&config, &fs::read(&config).unwrap()[..20]).unwrap();

    let store = open(folder, 100);
    assert_eq!(fs::read_dir(place.join("tmp")).unwrap().count(), 0);
    assert_eq!((layers(folder), fs::read_dir(place.join("images")).unwrap().count()), (2, 1));
    assert!(store.image(broken).is_none());
    let image = store.image(digest).unwrap();
    assert_eq!(image.layers().len(), 2);
    assert_eq!(store.used_bytes(), image.bytes());
    drop((store, image));
    fs::remove_dir_all(fs::read_dir(place.join("layers")).unwrap().next().unwrap().unwrap().path()).unwrap();
    let store = open(folder, 100);
    assert!(store.image(digest).is_none());
    assert_eq!((layers(folder), store.used_bytes()), (0, 0));
    drop(store);

    // The limit has become lower.
    pull(&open(folder, 100), &self::image(folder, "abc")).await.unwrap();
    let store = open(folder, 2);
    assert_eq!(fs::read_dir(place.join("images")).unwrap().count(), 0);
    assert!(layers(folder) == 1 && store.used_bytes() <= 2 << 20);
}

/// The next test runs this one again, in a user namespace.
#[test]
fn as_somebody_else() {
    let Ok(folder) = std::env::var("LENO_TEST_STORE") else { return };
    let error = Store::open(Path::new(&folder), Limits::default(), registries()).unwrap_err();
    assert!(matches!(error, Error::NotRoot { .. }), "{error}");
    assert!(error.to_string().contains("run the node as root"), "{error}");
    println!("refused: {error}");
}

#[test]
fn without_root_there_is_no_store() {
    for (options, expected) in [(&["-U"][..], "runs as another user"), (&["-U", "-r", "-m"], "is not permitted")] {
        let folder = tempfile::tempdir().unwrap();
        let exe = std::env::current_exe().unwrap();
        let mut command: Command = tool("unshare");
        command.args(options).arg(exe).args(["--exact", "store::as_somebody_else", "--nocapture"]);
        let output = run(command.env("LENO_TEST_STORE", folder.path().join("store")));
        assert!(output.contains("refused: ") && output.contains(expected), "{output}");
    }
}

/// The file of the image that is chosen from an index with these entries.
async fn chosen(make: impl FnOnce(&mut Blobs) -> Vec<Value>) -> Result<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut blobs = Blobs::default();
    let entries = make(&mut blobs);
    let index = blobs.index(&entries);
    let reference = blobs.write(&folder.path().join("layout"), &[index]);
    let store = open(folder.path(), 100);
    let image = pull(&store, &reference).await?;
    let digest = image.digest();
    let layers = image.layers();
    drop((image, store));
    let again = open(folder.path(), 100).image(digest).expect("the image is still known after a restart");
    assert_eq!(again.layers(), layers);
    let names: Vec<_> = fs::read_dir(&layers[0]).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    Ok(names[0].to_str().unwrap().to_owned())
}

/// The level of x86-64 that the kernel says this processor has.
fn level() -> u32 {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap();
    let flags: Vec<&str> = text.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().collect();
    let levels = [
        "cx16 popcnt pni ssse3 sse4_1 sse4_2",
        "avx avx2 bmi1 bmi2 f16c fma abm movbe",
        "avx512f avx512bw avx512cd avx512dq avx512vl",
    ];
    let has = |names: &&&str| names.split(' ').all(|name| flags.contains(&name));
    1 + u32::try_from(levels.iter().take_while(has).count()).unwrap()
}

#[tokio::test]
async fn the_best_variant_that_the_processor_runs_is_chosen() {
    let amd64 = |variant: &str| json!({ "os": "linux", "architecture": "amd64", "variant": variant });
    let all = ["v9", "v1", "v3", "v4", "v2", "haswell"];
    let found = chosen(|blobs| all.map(|variant| blobs.named(variant, amd64(variant))).to_vec()).await.unwrap();
    assert_eq!(found, format!("v{}", level()));
    // The order of the index decides between equals, and an image that names no variant is for every processor.
    let found = chosen(|blobs| {
        let plain = json!({ "os": "linux", "architecture": "amd64" });
        vec![blobs.named("v9", amd64("v9")), blobs.named("plain", plain), blobs.named("v1", amd64("v1"))]
    });
    assert_eq!(found.await.unwrap(), "plain");
    let found =
        chosen(|blobs| vec![blobs.named("a", json!({ "os": "Linux", "architecture": "x86_64", "variant": null }))]);
    assert_eq!(found.await.unwrap(), "a");

    let error = chosen(|blobs| vec![blobs.named("v9", amd64("v9")), blobs.named("x", amd64("x"))]).await.unwrap_err();
    let expected =
        format!("not made for linux/amd64 up to v{}; it is there for: linux/amd64/v9, linux/amd64/x", level());
    assert!(error.to_string().contains(&expected), "{error}");
    // The configuration supplies the platform that the index omits.
    let config = json!({ "os": "linux", "architecture": "amd64", "variant": "v9" });
    let error = chosen(|blobs| vec![blobs.image("x", config.clone())]).await.unwrap_err();
    assert!(matches!(error, Error::Platform { .. }), "{error}");
}

#[tokio::test]
async fn indexes_may_lead_to_indexes() {
    let amd64 = json!({ "os": "linux", "architecture": "amd64" });
    let arm64 = json!({ "os": "linux", "architecture": "arm64" });
    let nested = |blobs: &mut Blobs, depth: usize| {
        let mut entry = blobs.named("found", amd64.clone());
        for _ in 0..depth {
            let other = blobs.named("other", arm64.clone());
            entry = blobs.index(&[other, entry]);
        }
        vec![entry]
    };
    assert_eq!(chosen(|blobs| nested(blobs, 1)).await.unwrap(), "found");
    assert_eq!(chosen(|blobs| nested(blobs, 3)).await.unwrap(), "found");
    let error = chosen(|blobs| nested(blobs, 4)).await.unwrap_err().to_string();
    assert!(error.contains("more than 4 deep"), "{error}");
    let many = |blobs: &mut Blobs| {
        let inner = |at: usize, blobs: &mut Blobs| {
            let image = blobs.named(&format!("image{at}"), arm64.clone());
            blobs.index(&[image])
        };
        (0..100).map(|at| inner(at, blobs)).collect()
    };
    let error = chosen(many).await.unwrap_err().to_string();
    assert!(error.contains("more than 32"), "{error}");
    // The same index many times is read once; an entry may call an index a manifest, or say its platform.
    let same = |blobs: &mut Blobs| {
        let mut inner = nested(blobs, 1).remove(0);
        inner["platform"] = amd64.clone();
        let mut mistyped = inner.clone();
        mistyped["mediaType"] = json!(MANIFEST);
        let mut all = vec![inner; 100];
        all.insert(0, mistyped);
        all
    };
    assert_eq!(chosen(same).await.unwrap(), "found");
    // The best image of all indexes, not of the first.
    let spread = |blobs: &mut Blobs| {
        let one = blobs.named("one", amd64.clone());
        let best =
            blobs.named("best", json!({ "os": "linux", "architecture": "amd64", "variant": format!("v{}", level()) }));
        vec![blobs.index(&[one]), blobs.index(&[best])]
    };
    assert_eq!(chosen(spread).await.unwrap(), if level() > 1 { "best" } else { "one" });
}

#[tokio::test]
async fn attestations_and_entries_without_a_platform_are_told_from_images() {
    let attestation = |blobs: &mut Blobs| {
        let layer = blobs.put("application/vnd.in-toto+json", "{}");
        let config = blobs.json(CONFIG, &json!({ "os": "unknown", "architecture": "unknown", "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] } }));
        let mut manifest = blobs.json(MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": [layer] }));
        manifest["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest", "x": null });
        manifest
    };
    let buildkit = |blobs: &mut Blobs| {
        let mut unknown = attestation(blobs);
        unknown["platform"] = json!({ "os": "unknown", "architecture": "unknown" });
        vec![unknown, blobs.named("image", json!({ "os": "linux", "architecture": "amd64" }))]
    };
    assert_eq!(chosen(buildkit).await.unwrap(), "image");
    let unnamed = |blobs: &mut Blobs| {
        let arm64 = blobs.image("arm64", json!({ "os": "linux", "architecture": "arm64" }));
        let mut amd64 = blobs.image("amd64", json!({ "os": "linux", "architecture": "amd64" }));
        amd64["platform"] = json!({ "os": "", "architecture": "" });
        let empty = blobs.put("application/vnd.oci.empty.v1+json", "{}");
        let signature = blobs.json(MANIFEST, &json!({ "schemaVersion": 2, "config": empty, "layers": [empty] }));
        vec![attestation(blobs), signature, arm64, Value::Null, amd64]
    };
    assert_eq!(chosen(unnamed).await.unwrap(), "amd64");
    let error = chosen(|blobs| vec![attestation(blobs)]).await.unwrap_err().to_string();
    assert!(error.contains("no platform that its index names"), "{error}");
}

#[tokio::test]
async fn a_layout_may_have_a_tag_for_each_platform() {
    let folder = tempfile::tempdir().unwrap();
    let mut blobs = Blobs::default();
    let tagged = |mut entry: Value| {
        entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "1", "other": null });
        entry
    };
    let arm64 = tagged(blobs.named("arm64", json!({ "os": "linux", "architecture": "arm64" })));
    let amd64 = tagged(blobs.named("amd64", json!({ "os": "linux", "architecture": "amd64" })));
    let reference = blobs.write(&folder.path().join("layout"), &[arm64, amd64.clone(), amd64]);
    let image = pull(&open(folder.path(), 100), &format!("{reference}:1")).await.unwrap();
    assert!(image.layers()[0].join("amd64").exists());
    drop(image);

    // Whole names, as `podman save` and `docker save` write them.
    for (key, name) in
        [("org.opencontainers.image.ref.name", "localhost/x:2"), ("io.containerd.image.name", "docker.io/library/x:2")]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::default();
        let mut other = blobs.named("other", json!({ "os": "linux", "architecture": "amd64" }));
        other["annotations"] = json!({ key: "localhost:5000/x" });
        let mut image = blobs.named("named", json!({ "os": "linux", "architecture": "amd64" }));
        image["annotations"] = json!({ key: name });
        let reference = blobs.write(&folder.path().join("layout"), &[other, image]);
        let image = pull(&open(folder.path(), 100), &format!("{reference}:2")).await.unwrap();
        assert!(image.layers()[0].join("named").exists());
    }
}
