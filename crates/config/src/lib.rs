//! leno-config
