//! The API of a control plane: documents over HTTPS.
//!
//! `routes` has the paths, `service` a copy of the store, `leading` applies changes, `forward` asks the leader, `queries` asks
//! nodes, `tokens` has the permissions of callers, and `audit` the log of changes.

mod admission;
mod alerts;
mod audit;
mod audit_index;
mod authority;
mod dashboard;
mod documents;
mod error;
mod expiry;
mod flows;
mod forward;
mod gateways;
mod history;
mod leading;
mod nodes;
mod policies;
mod queries;
mod quota;
mod reruns;
mod rollouts;
mod routes;
mod sealing;
mod secrets;
mod server;
mod service;
mod tls;
mod tokens;
mod turns;
pub mod types;
mod unread;
mod views;
mod worker;

pub use admission::LARGEST_BODY;
pub use alerts::watch as watch_alerts;
pub use audit::Lines;
pub use dashboard::{Page, page};
pub use documents::check;
pub use expiry::watch as watch_expiry;
pub use forward::Leader;
pub use leading::{Leading, first_mesh};
pub use sealing::{SealError, SealingKeys};
pub use server::serve;
pub use service::Service;
pub use tls::{ApiCertificate, Certificate, make_folder};
pub use views::ViewPage;

#[cfg(test)]
mod tests {
    use super::routes;

    /// `LENO_BLESS=1` writes the description anew.
    #[test]
    fn the_description_is_the_one_in_the_reference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
        let mut now = serde_json::to_string_pretty(&routes::description()).unwrap();
        now.push('\n');
        if std::env::var_os("LENO_BLESS").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == now, "docs/reference/openapi.json is not what the API is; LENO_BLESS=1 writes it anew");
    }
}
