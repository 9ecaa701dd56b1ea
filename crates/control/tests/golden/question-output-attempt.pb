"
shop/report0€€8