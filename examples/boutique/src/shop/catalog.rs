//! The catalogue.

use super::money::MILLION;
use super::products::PRODUCTS;
use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Money, Nothing, Product, ProductId, Products};
use std::sync::Arc;

pub(crate) const LIST_PRODUCTS: Operation<Nothing, Products> =
    Operation::new("productcatalog", "/boutique.v1.ProductCatalog/ListProducts");
pub(crate) const GET_PRODUCT: Operation<ProductId, Product> =
    Operation::new("productcatalog", "/boutique.v1.ProductCatalog/GetProduct");

/// All products, as a list and by ID.
pub(crate) struct Catalog {
    all: Arc<Products>,
    each: Vec<Arc<Product>>,
}

impl Default for Catalog {
    fn default() -> Self {
        let product = |entry: &super::products::Entry| Product {
            id: entry.id.into(),
            name: entry.name.into(),
            description: entry.description.into(),
            picture: format!("/pictures/{}.jpg", entry.id),
            price: Some(Money { currency: "USD".into(), millionths: entry.price * (MILLION / 100) }),
            categories: vec![entry.category.into()],
        };
        let products: Vec<Product> = PRODUCTS.iter().map(product).collect();
        Self { each: products.iter().cloned().map(Arc::new).collect(), all: Arc::new(Products { products }) }
    }
}

impl Catalog {
    pub(crate) fn handle(&self, request: &Request) -> Result<Outcome, Failure> {
        match request.path.as_str() {
            path if path == LIST_PRODUCTS.path => Ok(LIST_PRODUCTS.answer(self.all.clone())),
            path if path == GET_PRODUCT.path => {
                let wanted = GET_PRODUCT.question(request)?.id;
                let product =
                    self.each.iter().find(|product| product.id == wanted).ok_or(Failure::Missing("product"))?;
                Ok(GET_PRODUCT.answer(product.clone()))
            }
            _ => Err(Failure::Path),
        }
    }
}
