//! The addresses of a node's listeners.

use leno_model::AdminListener;
use leno_model::MeshConfig;
use std::net::SocketAddr;

/// The addresses of this node that override those of the Mesh document. Nodes that share a machine,
/// and nodes with several addresses, need them.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    /// `spec.listeners.inbound`
    pub inbound: Option<SocketAddr>,
    /// `spec.listeners.outbound`
    pub outbound: Option<SocketAddr>,
    /// `spec.listeners.admin`
    pub admin: Option<AdminListener>,
    /// `spec.gateway.http`
    pub gateway_http: Option<SocketAddr>,
    /// The address of `spec.gateway.https`. Its certificate is the document's.
    pub gateway_https: Option<SocketAddr>,
    /// The node is no gateway: it has neither of the two.
    pub no_gateway: bool,
}

impl Listeners {
    /// The settings of the mesh with the addresses of this node.
    pub fn apply(&self, mut mesh: MeshConfig) -> MeshConfig {
        mesh.inbound = self.inbound.unwrap_or(mesh.inbound);
        mesh.outbound = self.outbound.unwrap_or(mesh.outbound);
        if let Some(admin) = &self.admin {
            mesh.admin = admin.clone();
        }
        if self.no_gateway {
            (mesh.gateway_http, mesh.gateway_https) = (None, None);
        }
        mesh.gateway_http = self.gateway_http.or(mesh.gateway_http);
        if let (Some(https), Some(address)) = (&mut mesh.gateway_https, self.gateway_https) {
            https.listen = address;
        }
        mesh
    }
}
