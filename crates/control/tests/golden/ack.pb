Ê¬
its program does not load
its program does not loada
D@f6c0d945dc8a9e01854484f4e9b123945919e553778d4386d1d939451c038a0cits program does not load.
shop/checkoutits program does not load.
shop/checkoutits program does not load
its program does not load
its program does not load