//! The pages of the shop.

use super::ad::GET_ADS;
use super::cart::{ADD_ITEM, GET_CART};
use super::catalog::{GET_PRODUCT, LIST_PRODUCTS};
use super::checkout::PLACE_ORDER;
use super::currency::{CONVERT, GET_SUPPORTED_CURRENCIES};
use super::page::Page;
use super::recommendation::LIST_RECOMMENDATIONS;
use super::shipping::GET_QUOTE;
use crate::calls::{Body, Calls, Failure, Outcome, Reply, Request};
use crate::messages::{
    Addition, Address, Ads, Card, Context, Conversion, Item, Items, Money, Nothing, Order, Parcel, ProductId,
    Recommendations, User, Viewed,
};
use hyper::{Method, StatusCode};

/// The user of a visit without a cookie.
const SOMEBODY: &str = "somebody";
/// The currency of prices, unless a cookie selects another.
const CURRENCY: &str = "CAD";

pub(crate) async fn handle(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    let visit = Visit { calls, user: request.cookie("user").unwrap_or(SOMEBODY), currency: request.currency() };
    let path = request.path.split('?').next().unwrap_or_default();
    match (&request.method, path) {
        (&Method::GET, "/") => visit.home().await,
        (&Method::POST, "/setCurrency") => set_currency(request),
        (&Method::GET, "/cart") => visit.cart().await,
        (&Method::POST, "/cart") => visit.add(request).await,
        (&Method::POST, "/cart/checkout") => visit.checkout(request).await,
        (&Method::GET, path) => match path.strip_prefix("/product/") {
            Some(product) => visit.product(product).await,
            None => Err(Failure::Path),
        },
        _ => Err(Failure::Path),
    }
}

/// A visit of a user to a page.
struct Visit<'a, C> {
    calls: &'a C,
    user: &'a str,
    currency: &'a str,
}

impl<C: Calls> Visit<'_, C> {
    async fn home(&self) -> Result<Outcome, Failure> {
        let calls = self.calls;
        let mut page = Page::new("Everything");
        page.currencies(&GET_SUPPORTED_CURRENCIES.ask(calls, &Nothing {}).await?, self.currency);
        let products = LIST_PRODUCTS.ask(calls, &Nothing {}).await?.products;
        page.count_of_cart(&self.items().await?);
        for product in products {
            let price = self.convert(product.price.clone()).await?;
            page.product(&product, &price);
        }
        page.ads(&self.ads(Vec::new()).await);
        Ok(page.answer())
    }

    async fn product(&self, id: &str) -> Result<Outcome, Failure> {
        let calls = self.calls;
        let product = GET_PRODUCT.ask(calls, &ProductId { id: id.to_owned() }).await?;
        let mut page = Page::new(&product.name);
        page.currencies(&GET_SUPPORTED_CURRENCIES.ask(calls, &Nothing {}).await?, self.currency);
        page.count_of_cart(&self.items().await?);
        let price = self.convert(product.price.clone()).await?;
        page.product(&product, &price);
        page.recommendations(&self.recommendations(vec![product.id]).await);
        page.ads(&self.ads(product.categories).await);
        Ok(page.answer())
    }

    async fn cart(&self) -> Result<Outcome, Failure> {
        let calls = self.calls;
        let mut page = Page::new("Your cart");
        page.currencies(&GET_SUPPORTED_CURRENCIES.ask(calls, &Nothing {}).await?, self.currency);
        let items = self.items().await?.items;
        let ids = items.iter().map(|item| item.product.clone()).collect();
        page.recommendations(&self.recommendations(ids).await);
        let parcel = Parcel { address: None, items };
        let quote = GET_QUOTE.ask(calls, &parcel).await?;
        let shipping = self.convert(Some(quote)).await?;
        let mut total = shipping.clone();
        for item in &parcel.items {
            let product = GET_PRODUCT.ask(calls, &ProductId { id: item.product.clone() }).await?;
            let price = self.convert(product.price.clone()).await?;
            total = total.plus(&price, item.quantity).ok_or(Failure::Question("too much money"))?;
            page.item(&product.name, item, &price);
        }
        page.amount("Shipping", &shipping);
        page.amount("Total", &total);
        Ok(page.answer())
    }

    async fn add(&self, request: &Request) -> Result<Outcome, Failure> {
        let (product, quantity) = (request.field("product_id"), request.field("quantity"));
        let product = product.ok_or(Failure::Question("there is no `product_id`"))?.to_owned();
        let quantity =
            quantity.and_then(|text| text.parse().ok()).ok_or(Failure::Question("there is no `quantity`"))?;
        // Only existing products can be bought.
        let product = GET_PRODUCT.ask(self.calls, &ProductId { id: product }).await?.id;
        let item = Some(Item { product, quantity });
        ADD_ITEM.ask(self.calls, &Addition { user: self.user.to_owned(), item }).await?;
        Ok(see("/cart", Vec::new()))
    }

    async fn checkout(&self, request: &Request) -> Result<Outcome, Failure> {
        let text = |name| request.field(name).unwrap_or_default().to_owned();
        let number = |name| request.field(name).and_then(|text| text.parse().ok()).unwrap_or_default();
        let order = Order {
            user: self.user.to_owned(),
            currency: self.currency.to_owned(),
            address: Some(Address {
                street: text("street"),
                city: text("city"),
                country: text("country"),
                zip_code: number("zip_code"),
            }),
            email: text("email"),
            card: Some(Card {
                number: text("card_number"),
                code: number("card_code"),
                year: number("card_year"),
                month: number("card_month"),
            }),
        };
        let receipt = PLACE_ORDER.ask(self.calls, &order).await?;
        let mut page = Page::new("Thank you");
        page.recommendations(&self.recommendations(Vec::new()).await);
        page.currencies(&GET_SUPPORTED_CURRENCIES.ask(self.calls, &Nothing {}).await?, self.currency);
        page.receipt(&receipt);
        Ok(page.answer())
    }

    async fn items(&self) -> Result<Items, Failure> {
        GET_CART.ask(self.calls, &User { id: self.user.to_owned() }).await
    }

    async fn convert(&self, price: Option<Money>) -> Result<Money, Failure> {
        CONVERT.ask(self.calls, &Conversion { from: price, to: self.currency.to_owned() }).await
    }

    /// A page can do without recommendations.
    async fn recommendations(&self, products: Vec<String>) -> Recommendations {
        let viewed = Viewed { user: self.user.to_owned(), products };
        LIST_RECOMMENDATIONS.ask(self.calls, &viewed).await.unwrap_or_default()
    }

    /// A page can do without advertisements.
    async fn ads(&self, words: Vec<String>) -> Ads {
        GET_ADS.ask(self.calls, &Context { words }).await.unwrap_or_default()
    }
}

fn set_currency(request: &Request) -> Result<Outcome, Failure> {
    let code = request.field("currency_code").filter(|code| is_code(code));
    let code = code.ok_or(Failure::Question("there is no `currency_code`"))?;
    Ok(see("/", vec![("set-cookie", format!("currency={code}; path=/"))]))
}

fn is_code(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Sends a browser to another page.
fn see(path: &str, mut headers: Vec<(&'static str, String)>) -> Outcome {
    headers.push(("location", path.to_owned()));
    Outcome::Reply(Reply { status: StatusCode::FOUND, headers, body: Body::Bytes(bytes::Bytes::new()) })
}

impl Request {
    fn cookie(&self, name: &str) -> Option<&str> {
        let pairs = self.cookie.as_deref()?.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    }

    fn currency(&self) -> &str {
        self.cookie("currency").filter(|code| is_code(code)).unwrap_or(CURRENCY)
    }

    /// The value of a field in a form whose values need no escapes.
    fn field(&self, name: &str) -> Option<&str> {
        let pairs = std::str::from_utf8(&self.body).ok()?.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    }
}
