//! Carts, in memory.

use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Addition, Item, Items, Nothing, User};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

pub(crate) const ADD_ITEM: Operation<Addition, Nothing> = Operation::new("cart", "/boutique.v1.Cart/AddItem");
pub(crate) const GET_CART: Operation<User, Items> = Operation::new("cart", "/boutique.v1.Cart/GetCart");
pub(crate) const EMPTY_CART: Operation<User, Nothing> = Operation::new("cart", "/boutique.v1.Cart/EmptyCart");

/// Most users with items in their carts.
const MOST: usize = 100_000;

/// The items by user.
#[derive(Default)]
pub(crate) struct Carts(Mutex<HashMap<String, Vec<Item>>>);

impl Carts {
    pub(crate) fn handle(&self, request: &Request) -> Result<Outcome, Failure> {
        let mut carts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match request.path.as_str() {
            path if path == ADD_ITEM.path => {
                let Addition { user, item } = ADD_ITEM.question(request)?;
                let item = item.filter(|item| item.quantity > 0).ok_or(Failure::Question("nothing is added"))?;
                if carts.len() >= MOST && !carts.contains_key(&user) {
                    return Err(Failure::Question("there are too many carts"));
                }
                let cart = carts.entry(user).or_default();
                match cart.iter_mut().find(|there| there.product == item.product) {
                    Some(there) => there.quantity = there.quantity.saturating_add(item.quantity),
                    None => cart.push(item),
                }
                Ok(ADD_ITEM.answer(Nothing {}))
            }
            path if path == GET_CART.path => {
                let user = GET_CART.question(request)?.id;
                let items = carts.get(&user).cloned().unwrap_or_default();
                Ok(GET_CART.answer(Items { user, items }))
            }
            path if path == EMPTY_CART.path => {
                carts.remove(&EMPTY_CART.question(request)?.id);
                Ok(EMPTY_CART.answer(Nothing {}))
            }
            _ => Err(Failure::Path),
        }
    }
}
