zЮЩ
а
shop/checkoutd (2
its query was not kept8BЭнчћЖ¶7req-1outbound"shop/checkout*
shop/stock2GET:/items/7Bp/authorization/allJ@authorizationp/authorization/some"to.paths: nothing matchesJrate limits
4

shop/stock&it does not host the function any more