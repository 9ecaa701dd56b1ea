//! OCI images on a node: pulled, verified, unpacked and kept.
//!
//! A [`Store`] is a folder. [`Resolver`] finds the digest that a tag names now, and needs no store;
//! [`Store::pull`] brings the image with that digest, and returns an [`Image`]: its configuration,
//! and one folder per layer for overlayfs. The image is a lease: as long as it is there, its layers
//! stay.
//!
//! Read in this order: [`Reference`] (where an image is), [`Registries`] (how to speak to
//! registries), `store` (pulls), `store/disk` (the files of the store), `store/shares` (which
//! images each namespace has, and which are removed), `store/layer` (a blob becomes a folder),
//! `archive`, `unpack`, `steps` and `tree` (an untrusted layer), `lower` (the layers below it),
//! `client` (the registries' protocol), `manifest` and `platform` (the parts of an image, and the
//! machines that it is for); and [`layout`], which makes images.
//!
//! # Verification
//! The digest and size of manifest, configuration and each layer, and the digest of each unpacked layer. Nothing counts before it is verified.
//!
//! # Where a layer's entries go
//! As in containerd, at their places in the finished image: links in a path are followed inside the
//! new root, also those of layers below, and a hard link to a file of a layer below copies that
//! file up. `..` in an entry's path, an entry below a file, a link to a missing file, and anything
//! beyond [`Limits`] refuse the layer.
//!
//! # Attributes of files that are kept
//! Owner, mode (including set-user-ID; mount with `nosuid` to ignore it), modification time,
//! `user.` attributes, `security.capability`, POSIX access control lists.
//!
//! # Omissions
//! Device nodes, and all other extended attributes: they belong to the machine that made the image,
//! or change overlayfs. [`Image::omissions`] counts them.
#![forbid(unsafe_code)]
#![deny(unreachable_pub)]

mod archive;
mod attributes;
mod beneath;
mod client;
mod decompress;
mod digest;
mod error;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
pub mod layout;
mod lower;
mod manifest;
mod path;
mod platform;
mod progress;
mod reference;
mod refusal;
mod registries;
mod resolve;
mod space;
mod steps;
mod store;
mod tree;
mod unpack;

pub use attributes::Omissions;
pub use client::AddressCheck;
pub use digest::{Digest, DigestError};
pub use error::{Error, Result};
pub use progress::{Progress, Snapshot, Stage};
pub use reference::Reference;
pub use registries::{Credentials, Proxies, Registries, Registry};
pub use resolve::Resolver;
pub use store::{Image, Limits, Store, max_files};
