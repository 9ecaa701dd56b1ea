//! The products of the shop.

/// A product as the catalogue has it. Prices are in hundredths of a US dollar.
pub(crate) struct Entry {
    pub id: &'static str,
    pub name: &'static str,
    pub description: &'static str,
    pub price: i64,
    pub category: &'static str,
}

/// All of them.
pub(crate) const PRODUCTS: [Entry; 9] = [
    Entry {
        id: "tea-kettle",
        name: "Kettle",
        description: "Boils a litre in three minutes, and whistles when it is done.",
        price: 3490,
        category: "kitchen",
    },
    Entry {
        id: "bread-tray",
        name: "Bread tray",
        description: "Beech, oiled by hand, with room for a loaf and a knife.",
        price: 2250,
        category: "kitchen",
    },
    Entry {
        id: "stone-bowl",
        name: "Bowl",
        description: "Stoneware, glazed inside, for soup or for keys.",
        price: 1475,
        category: "kitchen",
    },
    Entry {
        id: "desk-light",
        name: "Desk light",
        description: "A warm light on a long arm, which stays where it is put.",
        price: 5900,
        category: "study",
    },
    Entry {
        id: "note-block",
        name: "Notebook",
        description: "Two hundred pages of paper that takes ink, and lies flat when open.",
        price: 1220,
        category: "study",
    },
    Entry {
        id: "wall-clock",
        name: "Clock",
        description: "Large hands, no numbers, and not a sound.",
        price: 4199,
        category: "study",
    },
    Entry {
        id: "wool-scarf",
        name: "Scarf",
        description: "Two metres of soft wool, in the grey of a November morning.",
        price: 3865,
        category: "clothes",
    },
    Entry {
        id: "rain-cloak",
        name: "Rain cloak",
        description: "Light, wide enough for a rucksack, and dry after ten minutes in the wind.",
        price: 6799,
        category: "clothes",
    },
    Entry {
        id: "felt-shoes",
        name: "Felt shoes",
        description: "For cold floors; their soles are of cork.",
        price: 2980,
        category: "clothes",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_differ() {
        let ids: std::collections::BTreeSet<_> = PRODUCTS.iter().map(|product| product.id).collect();
        assert_eq!(ids.len(), PRODUCTS.len());
    }
}
