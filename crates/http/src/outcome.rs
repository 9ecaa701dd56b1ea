//! The outcome of an exchange or attempt, for outlier detection, retries and rollouts.

/// The HTTP status that corresponds to a response's status and the status of its gRPC call, if it
/// has one.
#[inline]
pub fn status(http: u16, grpc: Option<u8>) -> u16 {
    match grpc {
        Some(grpc) if http == 200 => http_status(grpc),
        _ => http,
    }
}

/// The HTTP status for a gRPC status, as Envoy's outlier detection has it.
fn http_status(grpc: u8) -> u16 {
    match grpc {
        0 => 200,          // OK
        1 => 499,          // CANCELLED
        3 | 9 | 11 => 400, // INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE
        4 => 504,          // DEADLINE_EXCEEDED
        5 => 404,          // NOT_FOUND
        6 | 10 => 409,     // ALREADY_EXISTS, ABORTED
        7 => 403,          // PERMISSION_DENIED
        8 => 429,          // RESOURCE_EXHAUSTED
        12 => 501,         // UNIMPLEMENTED
        14 => 503,         // UNAVAILABLE
        16 => 401,         // UNAUTHENTICATED
        _ => 500,          // UNKNOWN, INTERNAL, DATA_LOSS, and codes that gRPC does not have
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_status_counts_only_where_http_has_nothing_to_say() {
        assert_eq!([status(200, None), status(503, None), status(503, Some(0))], [200, 503, 503]);
        let failures: Vec<u8> = (0..=17).filter(|grpc| status(200, Some(*grpc)) >= 500).collect();
        assert_eq!(failures, [2, 4, 12, 13, 14, 15, 17]);
    }
}
