//! Orders.

use serde::{Deserialize, Serialize};

/// An order, as clients and `frontend-api` send it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Chosen by the client, so that sending an order twice does not order twice.
    pub id: String,
    /// The ordered item.
    pub item: String,
    /// How many.
    pub quantity: u32,
}

/// Why a body is not an order.
#[derive(Debug, thiserror::Error)]
pub enum BadOrder {
    /// It is not JSON, or has other fields.
    #[error("the body is not an order: {0}; expected {{\"id\": …, \"item\": …, \"quantity\": …}}")]
    Shape(#[from] serde_json::Error),
    /// The identifier is unusable.
    #[error("`id` has to be 1 to 64 letters, digits, `-` or `_`")]
    Id,
    /// The item is unusable.
    #[error("`item` has to be 1 to 64 letters, digits, `-` or `_`")]
    Item,
    /// The quantity is out of range.
    #[error("`quantity` has to be 1 to 1000")]
    Quantity,
}

impl Order {
    /// Reads and checks an order.
    pub fn parse(body: &[u8]) -> Result<Self, BadOrder> {
        let order: Self = serde_json::from_slice(body)?;
        if !is_name(&order.id) {
            return Err(BadOrder::Id);
        }
        if !is_name(&order.item) {
            return Err(BadOrder::Item);
        }
        if !(1..=1000).contains(&order.quantity) {
            return Err(BadOrder::Quantity);
        }
        Ok(order)
    }
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        let order = Order::parse(br#"{"id": "o-1", "item": "lamp", "quantity": 2}"#).unwrap();
        assert_eq!(order, Order { id: "o-1".into(), item: "lamp".into(), quantity: 2 });
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let refused = |body: &str| Order::parse(body.as_bytes()).unwrap_err();
        assert!(matches!(refused("lamp"), BadOrder::Shape(_)));
        assert!(matches!(refused(r#"{"id": "o-1", "item": "lamp"}"#), BadOrder::Shape(_)));
        assert!(matches!(refused(r#"{"id": "o-1", "item": "lamp", "quantity": 1, "price": 0}"#), BadOrder::Shape(_)));
        assert!(matches!(refused(r#"{"id": "", "item": "lamp", "quantity": 1}"#), BadOrder::Id));
        assert!(matches!(refused(r#"{"id": "o-1", "item": "a/b", "quantity": 1}"#), BadOrder::Item));
        assert!(matches!(refused(r#"{"id": "o-1", "item": "lamp", "quantity": 0}"#), BadOrder::Quantity));
    }
}
