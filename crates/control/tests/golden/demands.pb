r'
%
shop/checkoutp/rateLimits/alld 