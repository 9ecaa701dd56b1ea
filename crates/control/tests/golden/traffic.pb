*
shop/checkout	è
 