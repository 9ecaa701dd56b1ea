use crate::client::{Access, Client, Endpoint, Request, ok, refusal};
use crate::manifest::{self, Blob, Document, MAX_MANIFEST_BYTES};
use crate::reference::Place;
use crate::{Digest, DigestError, Error, Reference, Registries, Result};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Body, Method, StatusCode};
use serde_json::Value;
use std::path::Path;
use url::Url;

/// Pushes an image of an OCI layout to a registry, under the tag of `to`. Blobs that the registry
/// has already are not sent. Returns the digest.
///
/// # Errors
/// Fails if the registry refuses the image, or if the layout is invalid.
pub async fn push(layout: &Path, tag: &str, to: &Reference, registries: Registries) -> Result<Digest> {
    let (Place::Registry { registry, repository }, Some(to_tag)) = (&to.place, &to.tag) else {
        return Err(to.wrong("expected `registry/repository:tag`"));
    };
    let client = Client::new(registries)?;
    // Mirrors are read-only.
    let endpoint = client.endpoints(registry, repository)?.pop().ok_or_else(|| to.wrong("expected a registry"))?;
    let wrong = |reason: String| Error::Image { image: layout.display().to_string(), reason };
    let read = async |name: &str| {
        let path = layout.join(name);
        tokio::fs::read(&path).await.map_err(Error::io("cannot read", &path))
    };
    let index: Value =
        serde_json::from_slice(&read("index.json").await?).map_err(|error| wrong(format!("index.json: {error}")))?;
    let manifests = index["manifests"].as_array().map(Vec::as_slice).unwrap_or_default();
    let entry = manifests.iter().find(|manifest| manifest["annotations"]["org.opencontainers.image.ref.name"] == tag);
    let entry = entry.ok_or_else(|| wrong(format!("it has no image with the tag `{tag}`")))?;
    let digest = entry["digest"].as_str().unwrap_or_default();
    let digest: Digest = digest.parse().map_err(|error: DigestError| wrong(error.to_string()))?;
    let document = read(&format!("blobs/sha256/{}", digest.hex())).await?;
    if document.len() > MAX_MANIFEST_BYTES {
        return Err(wrong(format!("its manifest is longer than {MAX_MANIFEST_BYTES} bytes")));
    }
    let Document::Manifest(manifest) = manifest::read(&layout.display().to_string(), &document)? else {
        return Err(wrong("the tag names an index; expected one image".to_owned()));
    };
    for blob in manifest.layers.iter().chain([&manifest.config]) {
        push_blob(&client, &endpoint, *blob, &layout.join("blobs/sha256").join(blob.digest.hex())).await?;
    }
    let mut request = Request::new(Method::PUT, endpoint.url(&format!("manifests/{to_tag}"))?);
    request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.oci.image.manifest.v1+json"));
    let body = || Body::from(document.clone());
    request.body = Some(&body);
    ok(client.send(&endpoint, Access::Push, &request).await?).await?;
    Ok(digest)
}

async fn push_blob(client: &Client, endpoint: &Endpoint, blob: Blob, path: &Path) -> Result<()> {
    let known = Request::new(Method::HEAD, endpoint.url(&format!("blobs/{}", blob.digest))?);
    let response = client.send(endpoint, Access::Push, &known).await?;
    match response.status() {
        StatusCode::OK => return Ok(()),
        StatusCode::NOT_FOUND => {}
        _ => return Err(refusal(response).await),
    }
    let begin = Request::new(Method::POST, endpoint.url("blobs/uploads/")?);
    let response = ok(client.send(endpoint, Access::Push, &begin).await?).await?;
    let place = response
        .headers()
        .get(LOCATION)
        .and_then(|place| place.to_str().ok())
        .and_then(|place| response.url().join(place).ok());
    let nowhere = || Error::Answer {
        url: begin.url.to_string(),
        status: None,
        reason: "it names no place for the upload".to_owned(),
        retry_after: None,
    };
    let mut place: Url = place.ok_or_else(nowhere)?;
    if place.origin() != begin.url.origin() {
        let reason = format!(
            "it wants the upload at {}, another host; that is not supported",
            place.origin().ascii_serialization()
        );
        return Err(Error::Answer { url: begin.url.to_string(), status: None, reason, retry_after: None });
    }
    place.query_pairs_mut().append_pair("digest", &blob.digest.to_string());
    // The file is opened anew for each try. If it cannot be opened, the body is too short, which
    // the registry refuses; the first try reports the cause.
    std::fs::File::open(path).map_err(Error::io("cannot open", path))?;
    let body = || match std::fs::File::open(path) {
        Ok(file) => Body::from(tokio::fs::File::from_std(file)),
        Err(_) => Body::from(Vec::new()),
    };
    let mut request = Request::new(Method::PUT, place);
    request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    request.headers.insert(CONTENT_LENGTH, HeaderValue::from(blob.size));
    request.body = Some(&body);
    ok(client.send(endpoint, Access::Push, &request).await?).await?;
    Ok(())
}
