//! Policy 9: circuit breaker, which limits the load of a target. The runtime ejects endpoints; the
//! program sees only the load.

use crate::input::RequestInput;
use crate::outcome::{Denial, PolicyKind};
use crate::spec::Target;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Refuses a request that would exceed a limit.
pub(crate) fn check(target: &Target, input: &RequestInput<'_>) -> Result<(), Denial> {
    let Some(breaker) = &target.breaker else { return Ok(()) };
    let load = input.load;
    let clause = if load.requests >= breaker.max_requests {
        format!("maxRequests: {} requests are under way to {}", load.requests, target.function)
    } else if load.pending > 0 && load.pending >= breaker.max_pending {
        format!("maxPendingRequests: {} requests wait for {}", load.pending, target.function)
    } else if breaker.outlier.is_some() && load.healthy == 0 && load.ejected > 0 {
        format!("outlierDetection: all {} endpoints of {} are ejected", load.ejected, target.function)
    } else {
        return Ok(());
    };
    Err(open(&breaker.name, clause))
}

fn open(rule: &str, clause: String) -> Denial {
    Denial {
        status: 503,
        policy: PolicyKind::CircuitBreaker,
        rule: rule.to_string(),
        default: false,
        clause,
        headers: Vec::new(),
    }
}
