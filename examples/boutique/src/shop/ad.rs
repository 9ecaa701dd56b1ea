//! Advertisements for the shop's own products.

use super::products::PRODUCTS;
use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Ads, Advertisement, Context};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const GET_ADS: Operation<Context, Ads> = Operation::new("ad", "/boutique.v1.Ad/GetAds");

/// Number of advertisements.
const COUNT: usize = 2;

/// Position at which the next advertisements begin.
#[derive(Default)]
pub(crate) struct Advertising(AtomicUsize);

impl Advertising {
    pub(crate) fn handle(&self, request: &Request) -> Result<Outcome, Failure> {
        if request.path != GET_ADS.path {
            return Err(Failure::Path);
        }
        let words = GET_ADS.question(request)?.words;
        let first = self.0.fetch_add(1, Ordering::Relaxed) % PRODUCTS.len();
        let all = PRODUCTS.iter().cycle().skip(first).take(PRODUCTS.len());
        let fitting = all.filter(|product| words.is_empty() || words.iter().any(|word| word == product.category));
        let ads = fitting.take(COUNT).map(|product| Advertisement {
            product: product.id.to_owned(),
            text: format!("{}, this week one fifth off", product.name),
        });
        Ok(GET_ADS.answer(Ads { ads: ads.collect() }))
    }
}
