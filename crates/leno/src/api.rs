//! The API of `leno control`: documents over HTTPS.
//!
//! `routes` says what there is, `service` knows what the store has, `leading` takes changes, `asked` asks nodes, `tokens` says who may what, `audit` who did what.

mod admission;
mod asked;
mod audit;
mod authority;
mod error;
mod expiry;
mod leading;
mod nodes;
mod quota;
mod routes;
mod server;
mod service;
mod tls;
mod tokens;
mod turns;
pub(crate) mod types;
mod worker;

pub(crate) use admission::LARGEST_BODY;
pub(crate) use audit::Lines;
pub(crate) use expiry::watch as watch_expiry;
pub(crate) use leading::{Leading, first_mesh};
pub(crate) use server::serve;
pub(crate) use service::Service;
pub(crate) use tls::{Certificate, make_folder};

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
