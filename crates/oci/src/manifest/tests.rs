use super::*;

fn descriptor(kind: &str) -> String {
    format!(r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{}","size":3}}"#, Digest::of(kind.as_bytes()))
}

fn refused(text: &str) -> String {
    read("example/x", text.as_bytes()).unwrap_err().to_string()
}

fn manifest_of(text: &str) -> Manifest {
    match read("example/x", text.as_bytes()).unwrap() {
        Document::Manifest(manifest) => manifest,
        Document::Index(_) => panic!("{text} is read as an index"),
    }
}

#[test]
fn a_manifest_is_read() {
    let (config, layer) = (descriptor("config.v1+json"), descriptor("layer.v1.tar+gzip"));
    let manifest = manifest_of(&format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layer}]}}"#));
    assert_eq!(manifest.config, Blob { digest: Digest::of(b"config.v1+json"), size: 3 });
    assert_eq!(manifest.layers, [Blob { digest: Digest::of(b"layer.v1.tar+gzip"), size: 3 }]);
}

#[test]
fn a_layers_media_type_may_be_any_but_an_encrypted_one() {
    let config = descriptor("config.v1+json");
    for media_type in [
        r#""application/vnd.docker.image.rootfs.diff.tar.zstd""#,
        r#""application/vnd.docker.image.rootfs.foreign.diff.tar.gzip""#,
        r#""application/vnd.oci.image.layer.nondistributable.v1.tar+zstd""#,
        r#""application/octet-stream""#,
        r#""""#,
        "null",
    ] {
        let layer = format!(r#"{{"mediaType":{media_type},"digest":"{}","size":3}}"#, Digest::of(b"layer"));
        let manifest = manifest_of(&format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layer}]}}"#));
        assert_eq!(manifest.layers, [Blob { digest: Digest::of(b"layer"), size: 3 }]);
    }
    let encrypted = descriptor("layer.v1.tar+gzip+encrypted");
    let error = refused(&format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{encrypted}]}}"#));
    assert!(error.contains("encrypted layers are not supported"), "{error}");
}

#[test]
fn null_is_the_same_as_nothing() {
    let digest = Digest::of(b"x");
    let layer = format!(
        r#"{{"mediaType":null,"digest":"{digest}","size":3,"urls":null,"annotations":null,"platform":null,"data":null}}"#
    );
    let manifest = manifest_of(&format!(
        r#"{{"schemaVersion":null,"mediaType":null,"artifactType":null,"config":{layer},"layers":[{layer}],"manifests":null,"subject":null,"annotations":null}}"#
    ));
    assert_eq!(manifest.layers.len(), 1);
    let text = format!(
        r#"{{"schemaVersion":2,"manifests":[null,{{"digest":"{digest}","size":null,"platform":{{"os":null,"architecture":null,"variant":null,"os.features":null}},"annotations":{{"a":null}}}}],"layers":null,"annotations":null}}"#
    );
    let Document::Index(entries) = read("x", text.as_bytes()).unwrap() else { panic!("no index") };
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].platform(), entries[0].annotation("a")), (None, None));
    let error = refused(&format!(r#"{{"schemaVersion":2,"config":{layer},"layers":null}}"#));
    assert!(error.contains("it has 0 layers"), "{error}");
    let empty = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":null}"#;
    assert!(matches!(read("x", empty.as_bytes()), Ok(Document::Index(entries)) if entries.is_empty()));

    let id = Digest::of(b"layer");
    let text = format!(
        r#"{{"created":null,"author":null,"os":"linux","architecture":"amd64","variant":null,"os.features":null,"history":null,
            "rootfs":{{"type":"layers","diff_ids":["{id}"]}},
            "config":{{"User":null,"Env":null,"Entrypoint":null,"Cmd":null,"WorkingDir":null,"StopSignal":null,"Labels":null,"Shell":null,
                "ExposedPorts":{{"80/tcp":null}},"Volumes":{{"/data":null}},"OnBuild":null,"Healthcheck":null}}}}"#
    );
    let read = configuration("x", text.as_bytes(), &manifest).unwrap();
    assert_eq!(read.diff_ids, [id]);
    assert_eq!(read.config.exposed_ports.unwrap().into_keys().collect::<Vec<_>>(), ["80/tcp"]);
    let nothing =
        format!(r#"{{"os":null,"architecture":null,"config":null,"rootfs":{{"type":null,"diff_ids":["{id}"]}}}}"#);
    assert!(configuration("x", nothing.as_bytes(), &manifest).unwrap().platform.rank().is_some());
    let words = r#"{"Entrypoint":"one","Cmd":["a",null],"Env":[null,"A=b"],"ExposedPorts":null,"Volumes":null,"Labels":{"a":null}}"#;
    let config: Config = serde_json::from_str(words).unwrap();
    assert_eq!(
        (config.entrypoint.unwrap().list(), config.cmd.unwrap().list()),
        (vec!["one".to_owned()], vec!["a".to_owned(), String::new()])
    );
}

#[test]
fn what_is_no_image_is_refused() {
    let (config, layer) = (descriptor("config.v1+json"), descriptor("layer.v1.tar"));
    let many = vec![layer.clone(); 10_000].join(",");
    for (text, expected) in [
        ("{".to_owned(), "not readable"),
        ("<html>no</html>".to_owned(), "not readable"),
        (r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned(), "schema version 1"),
        (r#"{"schemaVersion":2}"#.to_owned(), "neither"),
        (r#"{"schemaVersion":2,"layers":[],"manifests":[]}"#.to_owned(), "both"),
        (format!(r#"{{"schemaVersion":2,"config":{config},"manifests":[]}}"#), "both"),
        (
            r#"{"schemaVersion":2,"layers":[],"mediaType":"application/vnd.oci.image.index.v1+json"}"#.to_owned(),
            "says that it is",
        ),
        (format!(r#"{{"schemaVersion":2,"config":{config},"layers":[]}}"#), "it has 0 layers"),
        (
            format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{many}]}}"#),
            "it has 10000 layers; expected 1 to 128",
        ),
        (format!(r#"{{"schemaVersion":2,"config":{config},"layers":[null]}}"#), "not readable"),
        (format!(r#"{{"schemaVersion":2,"config":null,"layers":[{layer}]}}"#), "its configuration: `` is no digest"),
    ] {
        let error = refused(&text);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_configuration_has_to_fit_the_manifest() {
    let manifest = |config: &str, layers: usize| {
        let layers = vec![descriptor("layer.v1.tar"); layers].join(",");
        manifest_of(&format!(r#"{{"schemaVersion":2,"config":{},"layers":[{layers}]}}"#, descriptor(config)))
    };
    let id = Digest::of(b"layer");
    let text = format!(r#"{{"os":"linux","architecture":"amd64","rootfs":{{"type":"layers","diff_ids":["{id}"]}}}}"#);
    let image = manifest("config.v1+json", 1);
    assert_eq!(configuration("x", text.as_bytes(), &image).unwrap().diff_ids, [id]);
    // A configuration whose bytes describe an image is accepted, whatever its type.
    assert_eq!(configuration("x", text.as_bytes(), &manifest("something+json", 1)).unwrap().diff_ids, [id]);
    let error = configuration("x", text.as_bytes(), &manifest("config.v1+json", 2)).unwrap_err().to_string();
    assert!(error.contains("2 layers, its configuration 1"), "{error}");
    let error = configuration("x", b"{}", &manifest("something+json", 1)).unwrap_err().to_string();
    assert!(error.contains("artifact of type `application/vnd.oci.image.something+json`"), "{error}");
    let error = configuration("x", b"{}", &image).unwrap_err().to_string();
    assert!(error.contains("no `rootfs`"), "{error}");
}
