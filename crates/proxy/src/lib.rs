//! leno-proxy
