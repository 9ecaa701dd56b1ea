""
flows7-12shop €€