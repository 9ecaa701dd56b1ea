//! Answers questions about the stock over gRPC.
#![forbid(unsafe_code)]

use orders::inventory::inventory_server::{Inventory, InventoryServer};
use orders::inventory::{CheckStockRequest, CheckStockResponse};
use orders::server::{address, told_to_end};
use std::collections::BTreeMap;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct Stock(BTreeMap<&'static str, u32>);

#[tonic::async_trait]
impl Inventory for Stock {
    async fn check_stock(&self, request: Request<CheckStockRequest>) -> Result<Response<CheckStockResponse>, Status> {
        let CheckStockRequest { item, quantity } = request.into_inner();
        let result = self.check(&item, quantity);
        match &result {
            Ok(stock) => println!("CheckStock {quantity} {item}: {} available", stock.available),
            Err(status) => println!("CheckStock {quantity} {item:?}: {}", status.code()),
        }
        result.map(Response::new)
    }
}

impl Stock {
    fn check(&self, item: &str, quantity: u32) -> Result<CheckStockResponse, Status> {
        if quantity == 0 {
            return Err(Status::invalid_argument("quantity has to be at least 1"));
        }
        let available = *self.0.get(item).ok_or_else(|| Status::not_found("there is no such item"))?;
        Ok(CheckStockResponse { in_stock: available >= quantity, available })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = address()?;
    let listener = TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))?;
    println!("listening on {address}");
    let stock = Stock(BTreeMap::from([("lamp", 40), ("table", 3), ("chair", 12)]));
    Server::builder()
        .add_service(InventoryServer::new(stock))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), told_to_end())
        .await?;
    println!("told to end");
    Ok(())
}
