//! leno-sandbox
