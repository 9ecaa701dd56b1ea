"2".
flows7-12shop €€*{"verdict":"deny"}0È