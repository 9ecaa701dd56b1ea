//! leno-identity
