//! Orders: prices the items in the cart, charges the customer, ships the items, and confirms the
//! order.

use super::Numbers;
use super::cart::{EMPTY_CART, GET_CART};
use super::catalog::GET_PRODUCT;
use super::currency::CONVERT;
use super::email::SEND_ORDER_CONFIRMATION;
use super::payment::CHARGE;
use super::shipping::{GET_QUOTE, SHIP_ORDER};
use crate::calls::{Calls, Failure, Operation, Outcome, Request};
use crate::messages::{Bill, Confirmation, Conversion, Money, Order, Ordered, Parcel, ProductId, Receipt, User};

pub(crate) const PLACE_ORDER: Operation<Order, Receipt> =
    Operation::new("checkout", "/boutique.v1.Checkout/PlaceOrder");

pub(crate) async fn handle(calls: &impl Calls, numbers: &Numbers, request: &Request) -> Result<Outcome, Failure> {
    if request.path != PLACE_ORDER.path {
        return Err(Failure::Path);
    }
    let Order { user, currency, address, email, card } = PLACE_ORDER.question(request)?;
    let items = GET_CART.ask(calls, &User { id: user.clone() }).await?.items;
    if items.is_empty() {
        // The cart is empty, so there is nothing to pay.
        return Ok(PLACE_ORDER.answer(Receipt::default()));
    }
    let to = |money: Option<Money>| Conversion { from: money, to: currency.clone() };
    let mut total = Money::zero(&currency);
    let mut prices = Vec::with_capacity(items.len());
    for item in &items {
        let product = GET_PRODUCT.ask(calls, &ProductId { id: item.product.clone() }).await?;
        prices.push(product.price);
    }
    let mut ordered = Vec::with_capacity(items.len());
    for (item, price) in items.iter().zip(prices) {
        let price = CONVERT.ask(calls, &to(price)).await?;
        total = total.plus(&price, item.quantity).ok_or(Failure::Question("too much money"))?;
        ordered.push(Ordered { item: Some(item.clone()), price: Some(price) });
    }
    let parcel = Parcel { address, items };
    let quote = GET_QUOTE.ask(calls, &parcel).await?;
    let shipping = CONVERT.ask(calls, &to(Some(quote))).await?;
    total = total.plus(&shipping, 1).ok_or(Failure::Question("too much money"))?;
    CHARGE.ask(calls, &Bill { amount: Some(total.clone()), card }).await?;
    let tracking = SHIP_ORDER.ask(calls, &parcel).await?.tracking;
    EMPTY_CART.ask(calls, &User { id: user }).await?;
    let receipt = Receipt {
        order: numbers.next("order"),
        tracking,
        shipping: Some(shipping),
        total: Some(total),
        items: ordered,
    };
    let confirmation = Confirmation { email, receipt: Some(receipt) };
    // The order is valid without a confirmation.
    let _ = SEND_ORDER_CONFIRMATION.ask(calls, &confirmation).await;
    Ok(PLACE_ORDER.answer(confirmation.receipt.unwrap_or_default()))
}
