//! `leno token`: tokens of the API, and join tokens of nodes.

use super::{Connection, Listing, Server, checked, rows};
use crate::listing::{Form, print_rows};
use crate::quantity;
use crate::screen::shown;
use anyhow::Result;
use leno_api::control::types::{JoinTokenRequest, NewJoinToken, NewToken, Role, TokenRequest};
use std::collections::BTreeSet;
use std::process::ExitCode;

/// The permissions of a token's bearer.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum TokenRole {
    /// Read documents and status.
    Reader,
    /// Also apply and delete documents.
    Editor,
    /// Also make and revoke tokens, and read the audit log.
    Admin,
}

impl From<TokenRole> for Role {
    fn from(role: TokenRole) -> Self {
        match role {
            TokenRole::Reader => Self::Reader,
            TokenRole::Editor => Self::Editor,
            TokenRole::Admin => Self::Admin,
        }
    }
}

/// `leno token …`
#[derive(clap::Subcommand)]
pub(crate) enum Token {
    /// Make a token, and print it. It cannot be printed again.
    Create {
        /// Permissions of its bearer.
        #[arg(long, value_enum)]
        role: TokenRole,
        /// Namespaces in which it is valid; may be given several times. Without it: all.
        #[arg(long, value_name = "NAMESPACE")]
        namespace: Vec<String>,
        /// Lifetime: `90d`, `12h`. Without it: until it is revoked.
        #[arg(long, value_name = "DURATION", value_parser = quantity::seconds)]
        expires: Option<u64>,
        /// Purpose of the token.
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Make a token with which a machine becomes a node, once (`leno node --join FILE`), and print it.
    Join {
        /// The name that the node must have; it replaces a node of that name. Without it: any name that no node has.
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// The node may also be a gateway.
        #[arg(long)]
        gateway: bool,
        /// The node is a gateway and hosts nothing (`leno gateway`).
        #[arg(long)]
        only_gateway: bool,
        /// The node connects to external services for the functions of all nodes, if the mesh has
        /// egress nodes (`egress.nodes` of the Mesh document).
        #[arg(long, conflicts_with = "only_gateway")]
        egress: bool,
        /// IP address, or block of addresses, at which other nodes may reach the node; may be given several times. Without it: only the address from
        /// which it joins.
        #[arg(long, value_name = "IP")]
        address: Vec<String>,
        /// Region of the node: requests prefer near nodes.
        #[arg(long, value_name = "NAME")]
        region: Option<String>,
        /// Zone of the node.
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
        /// Lifetime: `15m`, `12h`. Without it: an hour.
        #[arg(long, value_name = "DURATION", value_parser = quantity::seconds)]
        expires: Option<u64>,
        /// Processors that the node may offer at most, even if it claims more: `0.5`, or a number of
        /// thousandths. Without it: 1024.
        #[arg(long, value_name = "CPU", value_parser = quantity::cpu)]
        max_cpu: Option<u64>,
        /// Memory that it may offer at most: `512Mi`, or a number of bytes. Without it: 16 TiB.
        #[arg(long, value_name = "SIZE", value_parser = quantity::memory)]
        max_memory: Option<u64>,
        /// Instances that it may offer to run at most. Without it: 10,000.
        #[arg(long, value_name = "N")]
        max_instances: Option<u32>,
    },
    /// List the tokens, without their secrets.
    List {
        /// Format of the listing.
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// End a token at once.
    Revoke {
        /// Its public part, as `leno token list` shows it.
        id: String,
    },
}

/// Carries out `leno token …`.
pub(crate) fn token(server: &Server, command: Token) -> Result<ExitCode> {
    match command {
        Token::Create { role, namespace, expires, note } => {
            let namespaces: BTreeSet<String> = namespace.into_iter().collect();
            let request = TokenRequest { role: role.into(), namespaces, lifetime: expires, note };
            let made: NewToken = Connection::to(server)?.post("/v1/tokens", &request)?;
            println!("{}", shown(&made.token));
        }
        Token::Join {
            node,
            gateway,
            only_gateway,
            egress,
            address,
            region,
            zone,
            expires,
            max_cpu,
            max_memory,
            max_instances,
        } => {
            let request = JoinTokenRequest {
                node,
                gateway,
                only_gateway,
                egress,
                addresses: address,
                region,
                zone,
                lifetime: expires,
                max_cpu,
                max_memory,
                max_instances,
            };
            let made: NewJoinToken = Connection::to(server)?.post("/v1/join-tokens", &request)?;
            println!("{}", shown(&made.token));
        }
        Token::List { output } => {
            let rows = rows(&Connection::to(server)?, Listing::Tokens)?;
            print_rows(Listing::Tokens.columns(), &rows.iter().collect::<Vec<_>>(), output, true)?;
        }
        Token::Revoke { id } => {
            Connection::to(server)?.delete(&format!("/v1/tokens/{}", checked(&id)?))?;
            println!("token {id} revoked");
        }
    }
    Ok(ExitCode::SUCCESS)
}
