//! leno-control
