//! Confirmations of orders. This function writes them, but does not send them.

use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Confirmation, Nothing, Receipt};

pub(crate) const SEND_ORDER_CONFIRMATION: Operation<Confirmation, Nothing> =
    Operation::new("email", "/boutique.v1.Email/SendOrderConfirmation");

pub(crate) fn handle(request: &Request) -> Result<Outcome, Failure> {
    if request.path != SEND_ORDER_CONFIRMATION.path {
        return Err(Failure::Path);
    }
    let Confirmation { email, receipt } = SEND_ORDER_CONFIRMATION.question(request)?;
    if !email.contains('@') {
        return Err(Failure::Question("this is not an address"));
    }
    let text = letter(&email, &receipt.unwrap_or_default());
    // Keeps the compiler from dropping the unused letter.
    std::hint::black_box(text);
    Ok(SEND_ORDER_CONFIRMATION.answer(Nothing {}))
}

fn letter(email: &str, receipt: &Receipt) -> String {
    let mut text =
        format!("To: {email}\nSubject: Your order {}\n\nOn its way as {}:\n", receipt.order, receipt.tracking);
    for ordered in &receipt.items {
        let item = ordered.item.clone().unwrap_or_default();
        text.push_str(&format!("{} x {}, ", item.quantity, item.product));
        ordered.price.clone().unwrap_or_default().show(&mut text);
        text.push('\n');
    }
    for (name, amount) in [("Shipping: ", &receipt.shipping), ("Total: ", &receipt.total)] {
        text.push_str(name);
        amount.clone().unwrap_or_default().show(&mut text);
        text.push('\n');
    }
    text
}
