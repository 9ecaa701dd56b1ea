//! Functions that hand each other memory.
