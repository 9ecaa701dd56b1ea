//! `spec.quotas` of the Mesh document.

use super::fields::{self, MILLISECOND};
use crate::document;
use crate::duration::Duration;
use crate::problem::Scope;
use leno_model::{RedisQuotas, RedisTransport};
use std::cell::RefCell;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const LONGEST_TIMEOUT: Duration = Duration::from_secs(5);
const LONGEST_PREFIX: usize = 64;

pub(super) fn quotas(
    scope: &Scope<'_>,
    written: &document::Quotas,
    inputs: &RefCell<Vec<PathBuf>>,
) -> Option<RedisQuotas> {
    let redis = written.redis.as_ref()?;
    let scope = scope.field("redis");
    let file = |scope: &Scope<'_>, field: &str, path: &Option<PathBuf>| {
        path.as_deref().map(|path: &Path| fields::file(inputs, &scope.field(field), path))
    };
    let host = host(&scope.field("address"), &redis.address);
    let transport = match &redis.tls {
        Some(tls) => {
            let section = scope.field("tls");
            let written = tls.server_name.as_deref().or(host).unwrap_or_default();
            let server_name = server_name(written);
            if host.is_some() && name(&server_name).is_none() {
                let message = format!("`{}` is no name that a certificate can prove", server_name.escape_debug());
                section.field("serverName").problem(message, "expected a host name or an IP address");
            }
            RedisTransport::Tls { ca_file: file(&section, "caFile", &tls.ca_file), server_name }
        }
        None => {
            if host.is_some_and(|host| !is_loopback(host)) {
                let fix = "add `tls: {}`, with `caFile` if its authority is not one of the machine's";
                scope.field("address").problem("it is not on loopback and has no TLS", fix);
            }
            RedisTransport::Plain
        }
    };
    if redis.username.is_some() && redis.password_file.is_none() {
        scope.field("username").problem("there is a user without a password", "add `passwordFile: FILE`");
    }
    if let Some(username) =
        redis.username.as_deref().filter(|name| name.is_empty() || name.contains(char::is_whitespace))
    {
        let message = format!("`{}` cannot be a user", username.escape_debug());
        scope.field("username").problem(message, "expected a name without spaces; without a name, remove it");
    }
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    if redis.prefix.is_empty() || redis.prefix.len() > LONGEST_PREFIX || !redis.prefix.bytes().all(good) {
        let message = format!("`{}` cannot be a prefix", redis.prefix.escape_debug());
        let fix = format!("expected letters, digits, `-`, `_`, `.` and `:`, at most {LONGEST_PREFIX}");
        scope.field("prefix").problem(message, fix);
    }
    fields::millis(&scope.field("timeout"), redis.timeout, MILLISECOND, LONGEST_TIMEOUT);
    Some(RedisQuotas {
        address: redis.address.clone(),
        transport,
        username: redis.username.clone(),
        password_file: file(&scope, "passwordFile", &redis.password_file),
        database: redis.database,
        prefix: redis.prefix.clone(),
        timeout: redis.timeout.0,
    })
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host<'a>(scope: &Scope<'_>, address: &'a str) -> Option<&'a str> {
    let split = address.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
    let host = split.and_then(|(host, _)| match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']').filter(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok()),
        None => name(host),
    });
    if host.is_none() {
        let fix = "expected a host and a port, such as redis.shop.example:6379 or [2001:db8::1]:6379";
        scope.problem(format!("`{}` is not the address of a server", address.escape_debug()), fix);
    }
    host
}

/// A host name or an IP address.
fn name(text: &str) -> Option<&str> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_name = text.len() <= 253 && text.split('.').all(label);
    (is_name || text.parse::<IpAddr>().is_ok()).then_some(text)
}

/// The name that a certificate has to prove, in the form in which certificates have it. Other text
/// stays as it is written.
fn server_name(written: &str) -> String {
    match written.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => crate::host::normal(written).unwrap_or_else(|| written.to_owned()),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
