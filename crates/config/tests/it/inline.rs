//! Key sets in files that take the place of their names.

use leno_config::inline_files;
use std::fs;

#[test]
fn a_path_is_replaced_in_each_form_in_which_it_may_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let keys =
        r#"{"keys":[{"crv":"Ed25519","kid":"é: #1","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    fs::write(folder.path().join("k.json"), keys).unwrap();
    let document = |jwks: &str| {
        format!(
            "# é\nkind: Policy\nspec:\n  authentication:\n    issuers:\n    - issuer: é\n      jwks: {jwks}\n---\nkind: \
             Function\nspec: {{jwks: {{file: k.json}}}}\n"
        )
    };
    for (written, expected) in [
        ("{file: k.json}", "{inline: KEYS}"),
        ("{ \"file\" :  \"k.json\" } # file: k.json", "{ \"inline\" :  KEYS } # file: k.json"),
        ("{'file': 'k.json'}", "{'inline': KEYS}"),
        ("\n        file: ./k.json # comment", "\n        inline: KEYS # comment"),
        ("\n        file:\n          k.json", "\n        inline:\n          KEYS"),
    ] {
        let (text, inlined) = inline_files(Some(&file), &file, &document(written)).unwrap();
        assert_eq!(text, document(&expected.replace("KEYS", keys)), "{written}");
        assert_eq!(inlined.len(), 1);
    }
    for other in ["{url: \"https://k\"}", "{file: k.json, inline: {}}", "{file: [k.json]}", "{file: }"] {
        let (text, inlined) = inline_files(Some(&file), &file, &document(other)).unwrap();
        assert_eq!((text, inlined.len()), (document(other), 0));
    }
    for escaped in ["{file: \"k\\x2ejson\"}", "\n        file: >-\n          k.json"] {
        let problems = inline_files(Some(&file), &file, &document(escaped)).unwrap_err();
        assert!(problems[0].to_string().contains("without escapes"), "{problems:?}");
    }
}
