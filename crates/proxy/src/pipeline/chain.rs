//! Instances whose messages go through memory that they share with the node ([`leno_shm`]).
//!
//! A permitted request is put on the link of an instance ([`deliver`]), and each call that comes on
//! a link begins an exchange with the instance's function as the caller ([`outgoing`]). Heads are
//! copied on the way, so that no instance can change one after its verdict. Bodies stay where they
//! are, unless one end has no part in the chain's memory. If the verdict depends only on the
//! identities of caller and callee, the two instances get a direct channel ([`direct`]).

mod body;
mod deliver;
mod direct;
mod outgoing;

pub(super) use deliver::deliver;
pub(crate) use outgoing::serve;
