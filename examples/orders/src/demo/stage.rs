//! A folder with the documents, adapted to this machine and this run.

use crate::Result;
use crate::containers::LocalRegistry;
use crate::token::Issuer;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

const MESH: &str = include_str!("../../mesh/mesh.yaml");
const FUNCTIONS: &str = include_str!("../../mesh/functions.yaml");
const POLICIES: &str = include_str!("../../mesh/policies.yaml");
/// The path of the programs in a checkout, as the documents have it.
const PROGRAMS: &str = "../../../target/release";
/// The programs of the functions.
const FUNCTION_PROGRAMS: [&str; 4] = ["frontend-api", "order-service", "inventory-service", "intruder"];

/// The files and addresses of a run.
pub(crate) struct Stage {
    /// The folder of the documents.
    pub folder: PathBuf,
    /// The program `leno`.
    pub leno: PathBuf,
    /// The gateway's HTTP listener.
    pub gateway: SocketAddr,
    /// The listener for functions' calls.
    pub outbound: SocketAddr,
    /// The listener for mutual TLS.
    pub inbound: SocketAddr,
    /// The admin socket.
    pub admin: PathBuf,
    /// The folder of the programs.
    programs: PathBuf,
    /// The registry of the images, if functions are images.
    registry: Option<LocalRegistry>,
}

/// The form of the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Programs {
    /// Programs of this machine.
    OfThisMachine,
    /// Images.
    InContainers,
}

/// The choice of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// The ports of the documents, except those that other processes use.
    Documented,
    /// Any free ports.
    Any,
}

impl Stage {
    /// Writes the documents, with the issuer's public key as the key set.
    pub(crate) fn prepare(issuer: &Issuer, ports: Ports) -> Result<Self> {
        let programs = std::env::current_exe()?.parent().ok_or("this program is nowhere")?.to_owned();
        let leno = programs.join("leno");
        for program in ["leno"].iter().chain(&FUNCTION_PROGRAMS) {
            if !programs.join(program).is_file() {
                return Err(format!(
                    "{} is missing; build it with `make run`, or `cargo build --release -p leno -p orders`",
                    programs.join(program).display()
                )
                .into());
            }
        }
        let folder = fresh_folder()?;

        let mut mesh = MESH.to_owned();
        let mut address = |port| -> Result<SocketAddr> {
            let address = free(if ports == Ports::Documented { port } else { 0 })?;
            mesh = replaced(&mesh, &format!("127.0.0.1:{port}"), &address.to_string())?;
            Ok(address)
        };
        let (gateway, outbound, inbound) = (address(8080)?, address(15001)?, address(15006)?);
        let _control = address(15010)?;
        let admin = folder.join("admin.sock");
        let mesh =
            replaced(&mesh, "  listeners:\n", &format!("  listeners:\n    admin: \"unix:{}\"\n", admin.display()))?;
        let path = programs.to_str().ok_or("the path of this program is not UTF-8")?;
        fs::write(folder.join("mesh.yaml"), mesh)?;
        fs::write(folder.join("functions.yaml"), replaced(FUNCTIONS, PROGRAMS, &format!("\"{path}\""))?)?;
        fs::write(folder.join("policies.yaml"), POLICIES)?;
        fs::write(folder.join("jwks.json"), issuer.key_set().to_string())?;
        Ok(Self { folder, leno, gateway, outbound, inbound, admin, programs, registry: None })
    }

    /// Changes the functions to images, from a registry that ends with this.
    pub(crate) async fn contain(&mut self) -> Result<()> {
        let registry = self.registry.insert(LocalRegistry::start(&self.folder.join(".registry")).await?);
        let (functions, mesh) = (self.folder.join("functions.yaml"), self.folder.join("mesh.yaml"));
        let mut text = fs::read_to_string(&functions)?;
        for program in FUNCTION_PROGRAMS {
            let image = registry.push(&self.programs.join(program), &self.folder.join(".layouts")).await?;
            let command =
                format!("  command: [\"./{program}\"]\n  workingDirectory: \"{}\"\n", self.programs.display());
            text = replaced(&text, &command, &format!("  image: \"{image}\"\n"))?;
        }
        fs::write(functions, text)?;
        let images = format!(
            "  images: {{folder: .images, registries: [{{host: \"{}\", insecure: true}}]}}\n  instances:",
            registry.host
        );
        Ok(fs::write(&mesh, replaced(&fs::read_to_string(&mesh)?, "  instances:", &images)?)?)
    }

    /// Changes how functions of this node reach each other, by saving the document as an editor
    /// would.
    pub(crate) fn set_same_node(&self, mode: &str) -> Result<()> {
        let file = self.folder.join("mesh.yaml");
        let text = fs::read_to_string(&file)?;
        let other = if mode == "always" { "direct" } else { "always" };
        let text = replaced(&text, &format!("sameNode: {other},"), &format!("sameNode: {mode},"))?;
        let new = self.folder.join("mesh.yaml.new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, file)?)
    }

    /// The file of the access log in the documents.
    pub(crate) fn access_log(&self) -> PathBuf {
        self.folder.join("access.log")
    }

    /// The file of `leno`'s log.
    pub(crate) fn own_log(&self) -> PathBuf {
        self.folder.join("leno.log")
    }

    pub(crate) fn remove(self) -> Result<()> {
        drop(self.registry);
        Ok(fs::remove_dir_all(&self.folder)?)
    }
}

/// A folder that only this user can read: credentials do not pass through it, but the output of
/// functions does.
fn fresh_folder() -> Result<PathBuf> {
    for number in 0..1000 {
        let folder = std::env::temp_dir().join(format!("leno-orders-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("{}: {error}", folder.display()).into()),
        }
    }
    Err(format!("there is no space for another folder in {}", std::env::temp_dir().display()).into())
}

fn replaced(text: &str, old: &str, new: &str) -> Result<String> {
    if text.contains(old) {
        Ok(text.replace(old, new))
    } else {
        Err(format!("`{old}` is not in the documents any more").into())
    }
}

fn free(wished: u16) -> Result<SocketAddr> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, wished)).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(listener.local_addr()?)
}
