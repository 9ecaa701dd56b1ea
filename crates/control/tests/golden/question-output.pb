"*&
shop/checkout d*€ðÌ†¦7F0€€