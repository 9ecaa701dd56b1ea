//! leno-function
