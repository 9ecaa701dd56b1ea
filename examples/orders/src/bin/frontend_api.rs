//! The public side of the shop: takes orders and passes them on.
#![forbid(unsafe_code)]

use bytes::Bytes;
use http_body_util::Full;
use hyper::{HeaderMap, Method, Request, StatusCode};
use orders::inventory::CheckStockRequest;
use orders::mesh::{CallError, Inventory, Mesh};
use orders::order::Order;
use orders::server::{Call, Reply, serve};
use serde_json::{Map, Value, json};
use std::sync::Arc;

struct Frontend {
    mesh: Mesh,
    inventory: Inventory,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mesh = Mesh::from_env()?;
    let inventory = mesh.inventory()?;
    let frontend = Arc::new(Frontend { mesh, inventory });
    serve(move |call| {
        let frontend = Arc::clone(&frontend);
        async move { frontend.handle(call).await }
    })
    .await
}

impl Frontend {
    async fn handle(&self, call: Call) -> Reply {
        match (&call.method, call.path.as_str()) {
            (&Method::GET, "/healthz") => Reply::new(StatusCode::OK, json!({"status": "ok"})),
            (&Method::GET, "/whoami") => who(&call.headers),
            (&Method::GET, "/admin") => Reply::new(StatusCode::OK, json!({"message": "you are an administrator"})),
            (&Method::POST, "/orders") => self.take_order(&call.body).await,
            (&Method::GET, path) => match (path.strip_prefix("/orders/"), path.strip_prefix("/stock/")) {
                (Some(id), _) => self.show_order(id).await,
                (_, Some(item)) => self.show_stock(item).await,
                _ => not_found(),
            },
            _ => not_found(),
        }
    }

    async fn take_order(&self, body: &[u8]) -> Reply {
        let order = match Order::parse(body) {
            Ok(order) => order,
            Err(error) => return Reply::error(StatusCode::BAD_REQUEST, error),
        };
        let request = Request::post("http://order-service/orders")
            .header("content-type", "application/json")
            .body(Full::from(json!(order).to_string()));
        self.ask_order_service(request).await
    }

    /// `order-service` refuses this to all callers: its policy allows `POST /orders` only.
    async fn show_order(&self, id: &str) -> Reply {
        self.ask_order_service(Request::get(format!("http://order-service/orders/{id}")).body(Full::default())).await
    }

    async fn ask_order_service(&self, request: hyper::http::Result<Request<Full<Bytes>>>) -> Reply {
        let request = match request {
            Ok(request) => request,
            Err(error) => return Reply::error(StatusCode::BAD_REQUEST, error),
        };
        match self.mesh.send(request).await {
            Ok(response) => {
                // Some responses come from the mesh and not from order-service. Those are plain
                // text.
                let body = serde_json::from_slice(response.body()).unwrap_or_else(|_| {
                    let text = String::from_utf8_lossy(response.body());
                    json!({"error": format!("order-service: {}", text.trim_end())})
                });
                Reply::new(response.status(), body)
            }
            Err(error @ CallError::Timeout) => Reply::error(StatusCode::GATEWAY_TIMEOUT, error),
            Err(error) => Reply::error(StatusCode::BAD_GATEWAY, error),
        }
    }

    /// A shortcut past `order-service`, as a developer might add for convenience. The mesh refuses
    /// it: `inventory-service` is not among the callees of this function.
    async fn show_stock(&self, item: &str) -> Reply {
        let request = CheckStockRequest { item: item.to_owned(), quantity: 1 };
        match self.inventory.clone().check_stock(request).await {
            Ok(stock) => Reply::new(StatusCode::OK, json!({"item": item, "available": stock.get_ref().available})),
            Err(status) => {
                let http = match status.code() {
                    tonic::Code::PermissionDenied => StatusCode::FORBIDDEN,
                    tonic::Code::NotFound => StatusCode::NOT_FOUND,
                    _ => StatusCode::BAD_GATEWAY,
                };
                Reply::error(http, format!("inventory-service: {}: {}", status.code(), status.message()))
            }
        }
    }
}

/// The mesh's headers about the caller, and all other headers of the request.
fn who(headers: &HeaderMap) -> Reply {
    let mut all: Map<String, Value> = Map::new();
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        match all.get_mut(name.as_str()) {
            Some(Value::String(values)) => *values = format!("{values}, {value}"),
            _ => {
                all.insert(name.to_string(), Value::String(value.into_owned()));
            }
        }
    }
    Reply::new(StatusCode::OK, json!({"user": all.get("x-user"), "headers": all}))
}

fn not_found() -> Reply {
    Reply::error(
        StatusCode::NOT_FOUND,
        "there is GET /healthz, GET /whoami, GET /admin, POST /orders, GET /orders/{id}, GET /stock/{item}",
    )
}
