//! A function: one of the roles, with its state.

use crate::calls::{Body, Calls, Failure, Outcome, Reply, Request};
use crate::{hop, motion, parking, shop};
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// The path at which every function reports how many calls it got. No policy of the examples allows
/// that call; tests make it without a mesh.
const CALLS: &str = "/calls";

/// All roles, by their names.
pub const NAMES: [&str; 19] = [
    "frontend",
    "currency",
    "productcatalog",
    "cart",
    "recommendation",
    "shipping",
    "checkout",
    "payment",
    "email",
    "ad",
    "sensor",
    "actuator",
    "detection",
    "search",
    "index",
    "persist",
    "charging",
    "caller",
    "echo",
];

/// The role of a function.
enum Role {
    Frontend,
    Currency(shop::currency::Currency),
    ProductCatalog(shop::catalog::Catalog),
    Cart(shop::cart::Carts),
    Recommendation(shop::recommendation::Recommendation),
    Shipping(shop::Numbers),
    Checkout(shop::Numbers),
    Payment(shop::Numbers),
    Email,
    Ad(shop::ad::Advertising),
    Sensor,
    Actuator,
    Detection,
    Search,
    Index,
    Persist,
    Charging,
    Caller,
    Echo,
}

impl Role {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "frontend" => Self::Frontend,
            "currency" => Self::Currency(shop::currency::Currency::default()),
            "productcatalog" => Self::ProductCatalog(shop::catalog::Catalog::default()),
            "cart" => Self::Cart(shop::cart::Carts::default()),
            "recommendation" => Self::Recommendation(shop::recommendation::Recommendation::default()),
            "shipping" => Self::Shipping(shop::Numbers::default()),
            "checkout" => Self::Checkout(shop::Numbers::default()),
            "payment" => Self::Payment(shop::Numbers::default()),
            "email" => Self::Email,
            "ad" => Self::Ad(shop::ad::Advertising::default()),
            "sensor" => Self::Sensor,
            "actuator" => Self::Actuator,
            "detection" => Self::Detection,
            "search" => Self::Search,
            "index" => Self::Index,
            "persist" => Self::Persist,
            "charging" => Self::Charging,
            "caller" => Self::Caller,
            "echo" => Self::Echo,
            _ => return None,
        })
    }
}

/// A running function.
pub struct Function {
    role: Role,
    got: AtomicU64,
}

impl Function {
    /// The function of this name.
    pub fn new(name: &str) -> Option<Self> {
        Some(Self { role: Role::named(name)?, got: AtomicU64::new(0) })
    }

    /// Handles a call, and makes its calls to other functions by `calls`.
    pub async fn handle(&self, calls: &impl Calls, request: Request) -> Outcome {
        if request.path == CALLS {
            let count = self.got.load(Ordering::Relaxed).to_string();
            return Outcome::Reply(Reply::of(Body::Bytes(Bytes::from(count))));
        }
        self.got.fetch_add(1, Ordering::Relaxed);
        self.act(calls, &request).await.unwrap_or_else(|failure| Outcome::Reply(failure.into()))
    }

    /// Handles a call, for transports without delegation: calls the other function, and returns its
    /// response.
    pub async fn answer(&self, calls: &impl Calls, request: Request) -> Reply {
        let received = request.body.clone();
        match self.handle(calls, request).await {
            Outcome::Reply(reply) => reply,
            Outcome::Forward { callee, path, body } => match calls.call(callee, path, body.payload(&received)).await {
                Ok(body) => Reply::of(Body::Bytes(body)),
                Err(failure) => failure.into(),
            },
        }
    }

    async fn act(&self, calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
        match &self.role {
            Role::Frontend => shop::frontend::handle(calls, request).await,
            Role::Currency(currency) => currency.handle(request),
            Role::ProductCatalog(catalog) => catalog.handle(request),
            Role::Cart(carts) => carts.handle(request),
            Role::Recommendation(recommendation) => recommendation.handle(request),
            Role::Shipping(numbers) => shop::shipping::handle(numbers, request),
            Role::Checkout(numbers) => shop::checkout::handle(calls, numbers, request).await,
            Role::Payment(numbers) => shop::payment::handle(numbers, request),
            Role::Email => shop::email::handle(request),
            Role::Ad(advertising) => advertising.handle(request),
            Role::Sensor => motion::sense(calls).await,
            Role::Actuator => motion::act(calls, request).await,
            Role::Detection => parking::detect(calls, request).await,
            Role::Search => parking::search(calls, request).await,
            Role::Index => parking::index(calls, request).await,
            Role::Persist => parking::persist(calls, request).await,
            Role::Charging => parking::charge(calls, request).await,
            Role::Caller => hop::call(calls, request).await,
            Role::Echo => hop::echo(request),
        }
    }
}

/// Whether clients outside of the application call this function over plain HTTP.
pub fn is_entry(name: &str) -> bool {
    ["frontend", "sensor", "detection", "caller"].contains(&name)
}
