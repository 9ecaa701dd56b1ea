//! OCI images on a node: pulled, verified, unpacked and kept.
//!
//! A [`Store`] is a folder. [`Resolver`] says which digest a tag means now, and needs no store; [`Store::pull`] brings the image with that digest, and returns an
//! [`Image`]: what its configuration says, and one folder per layer for overlayfs. The image is a lease: as long as it is there, its layers stay.
//!
//! Read in this order: [`Reference`] (where an image is), [`Registries`] (how to speak to registries), `store` (pulls), `store/disk` (what is kept),
//! `store/shares` (what each namespace has, and what has to go), `store/layer` (a blob becomes a folder), `unpack` and `tree` (a layer that nobody has to trust), `settle` (a layer on top of others),
//! `client` (the registries' protocol), `manifest` (what an image is made of); and [`layout`], which makes images.
//!
//! # What is verified
//! The digest and size of manifest, configuration and each layer, and the digest of each unpacked layer. Nothing counts before it is verified.
//!
//! # What is refused
//! Entries that lead out of their layer or through a link in it, hard links to what the layer does not have, devices, FIFOs, extended attributes that speak
//! to overlayfs, and whatever is beyond [`Limits`]. A layer with entries below a folder that is a symbolic link in a layer below is refused as well:
//! overlayfs would hide what is behind the link.
//!
//! # What is kept of a file
//! Owner, mode (set-user-ID as well; mount with `nosuid` where it should mean nothing), modification time, `user.` attributes, `security.capability`, POSIX
//! access control lists. SELinux labels and IMA signatures are left out: they belong to the machine that made the image.
#![forbid(unsafe_code)]
#![deny(unreachable_pub)]

mod client;
mod decompress;
mod digest;
mod error;
pub mod layout;
mod manifest;
mod platform;
mod progress;
mod reference;
mod registries;
mod resolve;
mod settle;
mod store;
mod tree;
mod unpack;

pub use client::AddressCheck;
pub use digest::Digest;
pub use error::{Error, Result};
pub use progress::{Progress, Snapshot, Stage};
pub use reference::Reference;
pub use registries::{Credentials, Proxies, Registries, Registry};
pub use resolve::Resolver;
pub use store::{Image, Limits, Store, max_files};
