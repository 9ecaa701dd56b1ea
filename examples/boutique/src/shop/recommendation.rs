//! Recommendations of further products.

use super::products::PRODUCTS;
use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Recommendations, Viewed};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const LIST_RECOMMENDATIONS: Operation<Viewed, Recommendations> =
    Operation::new("recommendation", "/boutique.v1.Recommendation/ListRecommendations");

/// Number of recommendations.
const COUNT: usize = 5;

/// Position at which the next recommendations begin.
#[derive(Default)]
pub(crate) struct Recommendation(AtomicUsize);

impl Recommendation {
    pub(crate) fn handle(&self, request: &Request) -> Result<Outcome, Failure> {
        if request.path != LIST_RECOMMENDATIONS.path {
            return Err(Failure::Path);
        }
        let viewed = LIST_RECOMMENDATIONS.question(request)?.products;
        let first = self.0.fetch_add(1, Ordering::Relaxed) % PRODUCTS.len();
        let others = PRODUCTS.iter().cycle().skip(first).take(PRODUCTS.len());
        let others = others.filter(|product| !viewed.iter().any(|viewed| viewed == product.id));
        let products = others.take(COUNT).map(|product| product.id.to_owned()).collect();
        Ok(LIST_RECOMMENDATIONS.answer(Recommendations { products }))
    }
}
