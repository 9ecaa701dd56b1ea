//! Policy 9: circuit breaker, which limits the load of a target. The runtime counts the load and
//! ejects endpoints.

use crate::outcome::{Denial, PolicyKind};
use crate::spec::{Breaker, Target};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Load of a target on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLoad {
    /// Requests in flight.
    pub requests: u32,
    /// Requests waiting for a connection or an instance.
    pub pending: u32,
    /// Open connections.
    pub connections: u32,
    /// Endpoints that may be used.
    pub healthy: u32,
    /// Endpoints that are ejected.
    pub ejected: u32,
}

/// Refuses a request that would exceed a limit. `load` is that without the request.
///
/// # Errors
/// Returns the denial.
pub fn check(target: &Target, load: TargetLoad) -> Result<(), Denial> {
    let Some(breaker) = &target.breaker else { return Ok(()) };
    let clause = if load.requests >= breaker.max_requests {
        format!("maxRequests: {} requests are under way to {}", load.requests, target.function)
    } else if load.pending > 0 && load.pending >= breaker.max_pending {
        format!("maxPendingRequests: {} requests wait for {}", load.pending, target.function)
    } else if breaker.outlier.is_some() && load.healthy == 0 && load.ejected > 0 {
        format!("outlierDetection: all {} endpoints of {} are ejected", load.ejected, target.function)
    } else {
        return Ok(());
    };
    Err(open(breaker, clause))
}

/// The refusal of a request that would exceed the most requests in flight.
pub fn full(breaker: &Breaker) -> Denial {
    open(breaker, format!("maxRequests: {} requests are in flight", breaker.max_requests))
}

fn open(breaker: &Breaker, clause: String) -> Denial {
    Denial {
        status: 503,
        policy: PolicyKind::CircuitBreaker,
        rule: breaker.name.to_string(),
        default: false,
        clause,
        headers: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{TargetLoad, check, full};
    use crate::outcome::PolicyKind;
    use crate::spec::{Breaker, Outlier, Target};
    use crate::testing;
    use alloc::string::ToString;

    fn breaker() -> Breaker {
        let outlier = Outlier {
            consecutive_5xx: 5,
            consecutive_gateway: 0,
            interval_ms: 10_000,
            base_ejection_ms: 30_000,
            max_ejection_percent: 100,
        };
        Breaker {
            name: "p/circuitBreaker".to_string(),
            max_connections: 10,
            max_pending: 2,
            max_requests: 5,
            outlier: Some(outlier),
        }
    }

    #[test]
    fn a_breaker_refuses_a_request_that_would_exceed_a_limit() {
        let target = Target { breaker: Some(breaker()), ..testing::target("shop/orders") };
        let idle = TargetLoad { requests: 4, pending: 1, connections: 10, healthy: 1, ejected: 3 };
        assert_eq!(check(&target, idle), Ok(()), "all connections may be in use: requests then wait for one");
        for (load, clause) in [
            (TargetLoad { requests: 5, ..idle }, "maxRequests: 5 requests are under way to shop/orders"),
            (TargetLoad { pending: 2, ..idle }, "maxPendingRequests: 2 requests wait for shop/orders"),
            (TargetLoad { healthy: 0, ..idle }, "outlierDetection: all 3 endpoints of shop/orders are ejected"),
        ] {
            let denial = check(&target, load).unwrap_err();
            let by = (denial.status, denial.policy, denial.rule.as_str());
            assert_eq!(by, (503, PolicyKind::CircuitBreaker, "p/circuitBreaker"));
            assert_eq!(denial.clause, clause);
        }
        let none = TargetLoad { healthy: 0, ejected: 0, ..idle };
        assert_eq!(check(&target, none), Ok(()), "no endpoint yet: one will be started");
        let busy = TargetLoad { requests: 1_000, pending: 1_000, ..idle };
        assert_eq!(check(&testing::target("shop/orders"), busy), Ok(()), "without a breaker");
        let denial = full(&breaker());
        assert_eq!((denial.status, denial.clause.as_str()), (503, "maxRequests: 5 requests are in flight"));
    }
}
