//! HTML, with only the elements that the pages need.

use crate::calls::{Body, Outcome, Reply};
use crate::messages::{Ads, Currencies, Item, Items, Money, Product, Receipt, Recommendations};

/// A page under construction. It escapes text from other functions, which may come from another
/// user's browser.
pub(crate) struct Page(String);

impl Page {
    pub(crate) fn new(title: &str) -> Self {
        let mut page = Self(String::with_capacity(4096));
        page.put("<!doctype html><meta charset=utf-8><title>")
            .text(title)
            .put("</title><h1>")
            .text(title)
            .put("</h1>\n");
        page
    }

    fn put(&mut self, html: &str) -> &mut Self {
        self.0.push_str(html);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        for char in text.chars() {
            match char {
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '&' => self.0.push_str("&amp;"),
                '"' => self.0.push_str("&quot;"),
                other => self.0.push(other),
            }
        }
        self
    }

    fn money(&mut self, money: &Money) -> &mut Self {
        let mut text = String::new();
        money.show(&mut text);
        self.text(&text)
    }

    pub(crate) fn currencies(&mut self, currencies: &Currencies, chosen: &str) {
        self.put("<form method=post action=/setCurrency><select name=currency_code>");
        for code in &currencies.codes {
            self.put(if code == chosen { "<option selected>" } else { "<option>" }).text(code);
        }
        self.put("</select></form>\n");
    }

    pub(crate) fn count_of_cart(&mut self, items: &Items) {
        self.put("<a href=/cart>Cart: ").text(&items.items.len().to_string()).put("</a>\n");
    }

    pub(crate) fn product(&mut self, product: &Product, price: &Money) {
        self.put("<p><a href=\"/product/").text(&product.id).put("\"><img src=\"").text(&product.picture).put("\">");
        self.text(&product.name).put("</a> ").money(price).put("<br>").text(&product.description).put("</p>\n");
    }

    pub(crate) fn item(&mut self, name: &str, item: &Item, price: &Money) {
        self.put("<p>").text(&item.quantity.to_string()).put(" x ").text(name).put(" ").money(price).put("</p>\n");
    }

    pub(crate) fn amount(&mut self, name: &str, amount: &Money) {
        self.put("<p>").text(name).put(": ").money(amount).put("</p>\n");
    }

    pub(crate) fn recommendations(&mut self, recommendations: &Recommendations) {
        for id in &recommendations.products {
            self.put("<a class=liked href=\"/product/").text(id).put("\">").text(id).put("</a>\n");
        }
    }

    pub(crate) fn ads(&mut self, ads: &Ads) {
        for ad in &ads.ads {
            self.put("<a class=ad href=\"/product/").text(&ad.product).put("\">").text(&ad.text).put("</a>\n");
        }
    }

    pub(crate) fn receipt(&mut self, receipt: &Receipt) {
        self.put("<p>Order ").text(&receipt.order).put(", parcel ").text(&receipt.tracking).put("</p>\n");
        if let Some(total) = &receipt.total {
            self.amount("Total", total);
        }
    }

    pub(crate) fn answer(self) -> Outcome {
        let headers = vec![("content-type", "text/html; charset=utf-8".to_owned())];
        Outcome::Reply(Reply { headers, ..Reply::of(Body::Bytes(self.0.into())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_text() {
        let page = Page::new("<script>\"&").0;
        assert!(page.contains("&lt;script&gt;&quot;&amp;") && !page.contains("<script>"), "{page}");
    }
}
