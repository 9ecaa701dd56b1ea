//! Administration of nodes: join tokens, cordons, revocation.

use super::audit;
use super::error::ApiError;
use super::service::{Service, entry};
use super::tokens::Caller;
use super::types::{Action, AuditChange, AuditEntry, CordonRequest, JoinTokenRequest, NewJoinToken, Role};
use ipnet::IpNet;
use leno_control::{Admission, AdmitError, CapacityLimits, Cordon, TokenGrant, Transaction};
use leno_model::Locality;
use leno_wire::Placement;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

/// Default lifetime of a join token.
const LIFETIME: u64 = 3600;
/// Longest lifetime of a join token.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl Service {
    /// Creates a token with which one machine joins. Blocks on the store.
    pub fn create_join_token(&self, caller: &Caller, request: JoinTokenRequest) -> Result<NewJoinToken, ApiError> {
        let leading = self.of_the_mesh(caller)?;
        let JoinTokenRequest { node, gateway, only_gateway, egress, addresses, region, zone, lifetime, .. } = request;
        let (cpu_millis, memory, instances) = (request.max_cpu, request.max_memory, request.max_instances);
        if only_gateway && egress {
            let fix = "a node that is only a gateway has nothing else; make a token with `gateway` and `egress`";
            return Err(ApiError::Bad(fix.to_owned()));
        }
        let block = |address: &String| {
            let parsed = address.parse::<IpNet>().or_else(|_| address.parse::<IpAddr>().map(IpNet::from));
            parsed.map_err(|_| ApiError::Bad(format!("`{address}` is no IP address, and no block such as 10.0.0.0/24")))
        };
        let lifetime = Duration::from_secs(lifetime.unwrap_or(LIFETIME));
        let expires = SystemTime::now().checked_add(lifetime).filter(|_| lifetime <= LONGEST);
        let expires = expires.ok_or_else(|| ApiError::Bad("a join token is valid for at most a year".to_owned()))?;
        let placement = if only_gateway { Placement::Only(BTreeSet::new()) } else { Placement::Scheduled };
        let grant = TokenGrant {
            admission: Admission {
                placement,
                gateway: gateway || only_gateway,
                locality: Locality { region, zone },
                egress,
            },
            addresses: addresses.iter().map(block).collect::<Result<_, _>>()?,
            expires,
            node,
            limits: CapacityLimits { cpu_millis, memory, instances },
        };
        let what = grant.node.as_ref().map_or_else(|| "join token".to_owned(), |node| format!("join token for {node}"));
        let (entry, noted) = noted(caller, what, Action::Created)?;
        let token = leading.control.grant(grant, noted).map_err(|error| match error {
            AdmitError::Name(_) => ApiError::Bad(error.to_string()),
            error => ApiError::Unavailable(error.to_string()),
        })?;
        self.log(&entry);
        Ok(NewJoinToken { token: token.reveal().to_string() })
    }

    /// Revokes a node's membership. Blocks on the store.
    pub fn revoke_node(&self, caller: &Caller, node: &str) -> Result<(), ApiError> {
        let leading = self.of_the_mesh(caller)?;
        let (entry, noted) = noted(caller, format!("node {node}"), Action::Deleted)?;
        if !leading.control.revoke(node, noted)? {
            return Err(ApiError::NotFound(format!("node {node}")));
        }
        self.log(&entry);
        Ok(())
    }

    /// Cordons, drains or uncordons a node. Blocks on the store.
    pub fn cordon_node(&self, caller: &Caller, node: &str, request: &CordonRequest) -> Result<(), ApiError> {
        let leading = self.of_the_mesh(caller)?;
        let cordon = match request {
            CordonRequest { cordoned: true, drain: true } => Cordon::Drained,
            CordonRequest { cordoned: true, drain: false } => Cordon::Cordoned,
            CordonRequest { cordoned: false, drain: false } => Cordon::Open,
            CordonRequest { cordoned: false, drain: true } => {
                return Err(ApiError::Bad(
                    "`drain` needs `cordoned`: a drained node gets no further functions".to_owned(),
                ));
            }
        };
        let (entry, noted) = noted(caller, format!("node {node}"), Action::Changed)?;
        if !leading.control.cordon(node, cordon, noted)? {
            return Err(ApiError::NotFound(format!("node {node}")));
        }
        self.log(&entry);
        Ok(())
    }

    pub(super) fn of_the_mesh(&self, caller: &Caller) -> Result<std::sync::Arc<super::Leading>, ApiError> {
        caller.needs(Role::Admin)?;
        if !caller.is_everywhere() {
            return Err(ApiError::Forbidden(
                "nodes and the authority are of the whole mesh, and the token is not".to_owned(),
            ));
        }
        self.leading()
    }

    /// Adds an audit entry for an operation that the control plane carries out later.
    pub(super) fn note(&self, caller: &Caller, what: String, action: Action) -> Result<(), ApiError> {
        let (entry, noted) = noted(caller, what, action)?;
        self.backend.commit(&noted)?;
        self.log(&entry);
        Ok(())
    }
}

/// An audit entry, with a function that stores it with the change.
pub(super) fn noted(caller: &Caller, what: String, action: Action) -> Result<(AuditEntry, Transaction), ApiError> {
    let entry = entry(caller, vec![AuditChange { what, action, before: 0 }]);
    let mut transaction = Transaction::default();
    audit::add(&mut transaction, &entry)?;
    Ok((entry, transaction))
}
