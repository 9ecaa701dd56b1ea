//! Creates orders, if they can be filled.
//!
//! Two kinds of orders make it fail, to show the mesh's reaction: `flaky-<n>-…` fails with 503 the
//! first n times it is sent, `broken-…` fails with 500 each time.
#![forbid(unsafe_code)]

use hyper::{Method, StatusCode};
use orders::inventory::CheckStockRequest;
use orders::mesh::{Inventory, Mesh};
use orders::order::Order;
use orders::server::{Call, Reply, serve};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most orders in memory.
const MOST_ORDERS: usize = 10_000;

struct Orders {
    inventory: Inventory,
    created: Mutex<BTreeMap<String, Order>>,
    /// How often each flaky order has failed.
    failed: Mutex<BTreeMap<String, u32>>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let inventory = Mesh::from_env()?.inventory()?;
    let orders = Arc::new(Orders { inventory, created: Mutex::default(), failed: Mutex::default() });
    serve(move |call| {
        let orders = Arc::clone(&orders);
        async move { orders.handle(call).await }
    })
    .await
}

impl Orders {
    async fn handle(&self, call: Call) -> Reply {
        match (&call.method, call.path.as_str()) {
            (&Method::GET, "/healthz") => Reply::new(StatusCode::OK, json!({"status": "ok"})),
            (&Method::POST, "/orders") => self.create(&call.body).await,
            (&Method::GET, path) if path.starts_with("/orders/") => self.show(path.trim_start_matches("/orders/")),
            _ => Reply::error(StatusCode::NOT_FOUND, "there is GET /healthz, POST /orders, GET /orders/{id}"),
        }
    }

    async fn create(&self, body: &[u8]) -> Reply {
        let order = match Order::parse(body) {
            Ok(order) => order,
            Err(error) => return Reply::error(StatusCode::BAD_REQUEST, error),
        };
        if let Some(reply) = self.misbehave(&order.id) {
            return reply;
        }
        if let Some(known) = lock(&self.created).get(&order.id) {
            return if *known == order {
                Reply::new(StatusCode::OK, json!({"order": known, "status": "accepted before"}))
            } else {
                Reply::error(StatusCode::CONFLICT, format!("order {} exists, and is a different one", order.id))
            };
        }
        let request = CheckStockRequest { item: order.item.clone(), quantity: order.quantity };
        match self.inventory.clone().check_stock(request).await {
            Ok(stock) if stock.get_ref().in_stock => self.accept(order),
            Ok(stock) => {
                let available = stock.get_ref().available;
                Reply::error(StatusCode::CONFLICT, format!("only {available} of {} in stock", order.item))
            }
            Err(status) => {
                let http = match status.code() {
                    tonic::Code::NotFound | tonic::Code::InvalidArgument => StatusCode::UNPROCESSABLE_ENTITY,
                    tonic::Code::Unavailable | tonic::Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
                    tonic::Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
                    _ => StatusCode::BAD_GATEWAY,
                };
                Reply::error(http, format!("inventory-service: {}: {}", status.code(), status.message()))
            }
        }
    }

    fn accept(&self, order: Order) -> Reply {
        let mut created = lock(&self.created);
        if created.len() >= MOST_ORDERS {
            created.pop_first();
        }
        let reply = Reply::new(StatusCode::CREATED, json!({"order": order, "status": "accepted"}));
        created.insert(order.id.clone(), order);
        reply
    }

    fn show(&self, id: &str) -> Reply {
        match lock(&self.created).get(id) {
            Some(order) => Reply::new(StatusCode::OK, json!({"order": order})),
            None => Reply::error(StatusCode::NOT_FOUND, format!("there is no order {id}")),
        }
    }

    fn misbehave(&self, id: &str) -> Option<Reply> {
        if id.starts_with("broken-") {
            return Some(Reply::error(StatusCode::INTERNAL_SERVER_ERROR, "this order breaks the service each time"));
        }
        let times: u32 = id.strip_prefix("flaky-")?.split('-').next()?.parse().ok()?;
        let mut failed = lock(&self.failed);
        if failed.len() >= MOST_ORDERS {
            failed.pop_first();
        }
        let so_far = failed.entry(id.to_owned()).or_default();
        if *so_far >= times {
            return None;
        }
        *so_far += 1;
        Some(Reply::error(StatusCode::SERVICE_UNAVAILABLE, format!("failure {so_far} of {times}")))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
